"""Questions and answers about how a Llama works, stage by stage,
and about this library.
"""

from __future__ import annotations

from .facts_types import Topic, topics

# The 21 stages of the shape trace, in run order: short name, explanation.
_STAGES = """
tokenization | The text is split into pieces, and byte pairs are merged by rank into token ids.
the tokens tensor | The token ids become an int32 tensor of shape [T].
the loop over the sequence | The prompt runs once, then each new token runs alone with the cache.
the input tensor | Each id selects a row of tok_embeddings, giving a tensor of shape [T, D].
the transformer block | L blocks run one after another, and each one adds to the stream of shape
  [T, D].
the attention pre-norm | RMS norm scales each row before attention sees it.
attention | Each token looks at the tokens before it and gathers what it needs.
xq, xk and xv | Three matrices turn the rows into queries, keys and values.
the reshape to heads | Queries become [T, H, h], keys and values become [T, K, h].
rotary embedding | Pairs of numbers in queries and keys are rotated by an angle that grows with
  the position.
the KV cache update | New keys and values are stored, so they are never computed again.
repeat heads | Each key and value head is shared by G query heads, where G is H divided by K.
scores, mask and softmax | Queries times keys give scores, the mask hides the future, softmax
  makes weights.
the attention output | The weighted values are joined and multiplied by wo.
the attention residual | The output of attention is added to the block's input.
the feed-forward pre-norm | RMS norm scales each row again before the feed-forward part.
feed-forward | silu(w1 x) times w3 x is multiplied by w2: up to size F and back to D.
the feed-forward residual | The output of feed-forward is added to the stream.
output norm and logits | After a last RMS norm the output matrix gives one score per word of the
  vocabulary.
sampling | Temperature, top-k and top-p shape the scores, then one token is drawn.
token to text | The new token becomes text, and an end token stops the loop.
"""

_LLAMA = """
[llama]
What is a Llama model? / What is Llama? / Explain the Llama model.
> Llama is a language model: a stack of transformer blocks that predicts the next token.
[token]
What is a token? / What does token mean? / Explain tokens.
> A token is a piece of text, often a word or part of a word, that has a number.
[logits]
What are logits? / Explain logits. / What does logits mean?
> Logits are the scores that the model gives to every token of the vocabulary.
[softmax]
What is softmax? / What does softmax do? / Explain softmax.
> Softmax turns scores into positive weights that sum to one.
[kv-cache]
What is the KV cache? / Why is there a KV cache? / Explain the KV cache.
> The KV cache keeps the keys and values of earlier tokens, so a new token costs one row of work.
[gqa]
What is grouped-query attention? / Explain grouped queries. / What are grouped queries?
> In grouped-query attention several query heads share one key and value head, so the cache is
  smaller.
[rope]
What is RoPE? / What does RoPE stand for? / Explain RoPE.
> RoPE is rotary position embedding: it rotates queries and keys so that scores depend on
  distance.
[rms-norm]
What is RMS norm? / What does RMS norm do? / Explain RMS norm.
> RMS norm divides a row by its root mean square and multiplies it by a learned weight.
[swiglu]
What is SwiGLU? / What does SwiGLU do? / Explain SwiGLU.
> SwiGLU multiplies silu of one projection by another projection.
[residual]
What is a residual connection? / Why are there residuals? / Explain residual connections.
> A residual connection adds the input of a layer to its output, so nothing is lost on the way.
[temperature]
What is temperature? / What does temperature do? / Explain temperature in sampling.
> Temperature divides the logits: low values make the choice sure, high values make it varied.
[bfloat16]
What is bfloat16? / Explain bfloat16. / What is the bfloat16 type?
> bfloat16 is a 16-bit number with the exponent of float32 and 7 bits of fraction.
[embedding]
What is an embedding? / Explain embeddings. / What does embedding mean?
> An embedding is the row of numbers that stands for a token inside the model.
[attention-why]
Why does attention need a mask? / What is the causal mask? / What does the mask do?
> The mask hides later tokens, so a token can only look back.
[letters]
What do T, D, H and K mean? / What do the shape letters mean? / Explain the shape letters.
> T is new tokens, D the model size, H the query heads, K the key heads, h the head size.
[stages]
How many stages are there? / How many stages does the trace have? / Count the stages.
> There are 21 stages, from tokenization to text.
"""

_LIBRARY = """
[library]
What is llama-bolts? / What is this library? / What is this project?
> llama-bolts is a Llama inference engine in Python with its own tensor library and C kernels.
[tensor]
What is ml.Tensor? / What does ml.Tensor hold? / Explain ml.Tensor.
> ml.Tensor is a view of memory with a shape, strides, a dtype and a name.
[views]
Does reshape copy data? / Does transpose copy data? / Are views copies?
> No. Reshape, transpose and slice give views of the same memory.
[kernels]
What are the kernels? / What do the C kernels do? / Where is the C code?
> The kernels are C functions in csrc that do the heavy arithmetic with all threads.
[isa]
Which instruction sets are used? / Which CPU instructions do the kernels use? / Do the kernels use
AVX?
> The kernels choose at run time among AVX-512, AVX2, NEON and portable C.
[log]
What is debug.log? / What is in debug.log? / Where do I see the shapes?
> debug.log is the shape trace: one line per event, numbered by stage, with the shapes of all
  tensors.
[run]
How do I run this? / How do I start the chat? / How do I run the program?
> Type python -m src.main to start the chat.
[prompt]
How do I ask one question? / How do I give a prompt on the command line? / What does -p do?
> Use python -m src.main -p and your prompt: it prints one answer and exits.
[install]
How do I install it? / How do I install this library? / What is the install command?
> Type pip install -e . in the folder of the project. You need Python and a C compiler.
[own-model]
How do I use my own Llama? / How do I load another model? / What does -m do?
> Use python -m src.main -m and the folder of your model.
[layout]
What is the package layout? / Which packages are there? / How is the code organised?
> The packages are ml, checkpoint, tokenizer, model, inference, cli and nano.
[imports]
Which way do imports run? / What imports what? / What is the import direction?
> Imports run one way: ml, then checkpoint and tokenizer, then model, inference and cli.
[checkpoint]
What does the checkpoint package do? / How are weights loaded? / Are weights copied?
> The checkpoint package maps the files into memory and uses the weights where they lie.
[pytorch]
Do you need PyTorch? / Does this library use PyTorch? / Is PyTorch needed?
> No. PyTorch was used to train me, but all arithmetic at run time is our own.
[license]
What is the licence? / What is the license? / Under which licence is this?
> The licence is Apache-2.0.
[params]
What is params.json? / What is in params.json? / Explain params.json.
> params.json holds the sizes of the model: dim, layers, heads and more.
[help]
Which options are there? / How do I see all options? / Is there a help text?
> Type python -m src.main --help to see all options.
[metadata]
How do I list the tensors? / What does --metadata do? / How do I see the weights?
> Type python -m src.main --metadata to list all tensors with their shapes.
"""


def _stage_topics() -> tuple[Topic, ...]:
    found = []
    lines = _STAGES.strip().replace("\n  ", " ").splitlines()
    for number, line in enumerate(lines, start=1):
        name, text = line.split(" | ")
        questions = (
            f"What happens in stage {number}?",
            f"What happens in {name}?",
            f"Explain {name}.",
            f"Describe stage {number} of the model.",
        )
        found.append(
            Topic(f"stage-{number}", questions, f"Stage {number} is {name}. {text}")
        )
    return tuple(found)


LLAMA_TOPICS = (*_stage_topics(), *topics(_LLAMA))
LIBRARY_TOPICS = topics(_LIBRARY)
