# Generated from docs/BY-HAND-NF4.md by `python -m tools.update_docs`.

# %% [markdown]
# # By hand: NF4 and sampling
#
# In this session you quantize a matrix to four bits yourself, run the network with such weights, and draw the tokens of an
# answer with temperature and top-p by hand. The text is equal to the engine's.
#
# All cells are also a [notebook](../notebooks/by_hand_nf4.ipynb) and a [program](../notebooks/by_hand_nf4.py). The
# examples of this page continue each other.
#
# ## A matrix in four bits
#
# With `path = "smollm2"`, all cells run on SmolLM2.

# %%
import math

from llama_bolts import ml
from llama_bolts.inference import InferenceEngine, Message, SamplingArgs, encode_chat
from llama_bolts.model import load_model
from llama_bolts.model.recording import record_pass
from llama_bolts.model.rope import pair_frequencies

path = None  # the bundled model; "smollm2" is the other one
plain = load_model(path, dequantize=path is not None)
w = plain.tensors["layers.0.feed_forward.w1.weight"].contiguous()
w

# %% [markdown]
# NF4 has 16 levels. They are the quantiles of a normal distribution, because weights are distributed like that
# ([chapter 18](../docs/18-quantization.md)):

# %%
levels = ml.nf4_code()
levels

# %% [markdown]
# Each 64 elements share one scale, the largest magnitude among them. Each element becomes the number of the nearest level:

# %%
blocks = w.float().reshape(-1, 64)
scales = blocks.abs().max(dim=-1, keepdim=True)[0]  # [blocks, 1]
distances = ((blocks / scales)[..., None] - levels).abs()  # [blocks, 64, 16]
codes = distances.min(dim=-1)[1]  # 0 to 15
print(codes[0, :16].tolist())
approximate = (levels[codes] * scales).reshape(w.shape)
error = (approximate - w.float()).norm() / w.float().norm()
print(f"{w.nbytes} bytes -> {codes.numel() // 2 + 4 * scales.numel()}, error {error:.2%}")

# %% [markdown]
# The library does the same, with the bits of bitsandbytes:

# %%
quantized = ml.quantize(w, "nf4")
print(quantized, quantized.nbytes, "bytes")
same = quantized.dequantize() == approximate
print(f"{same.float().mean():.4%} of the elements are equal")

# %% [markdown]
# A quantized matrix is not a plain tensor. Products take it as it is:

# %%
x = ml.randn(2, w.shape[1], generator=ml.Generator(1), dtype="bfloat16")
ml.linear_transformation(x, quantized).shape

# %% [markdown]
# ## The model with such weights

# %%
model = load_model(path, dequantize=path is not None, quantize="nf4")
args = model.args
network = model.transformer
network

# %%
tokenizer = model.tokenizer
ids = encode_chat(tokenizer, [Message("user", "Write a poem about the sea.")])
T = len(ids)
engine = record_pass(model, ids)
ml.name_sizes(T=T, D=args.dim, F=args.ffn_dim, V=args.vocab_size)
tokenizer.decode(ids)

# %% [markdown]
# ## The network, step by step
#
# The network is that of [the first session](../docs/BY-HAND.md), in small functions. `linear` takes plain and quantized weights:

# %%
linear = ml.linear_transformation
h = args.head_dim
frequencies = pair_frequencies(h, args.rope_theta, args.rope_scaling)
angles = ml.outer(ml.arange(T + 24).float(), frequencies)  # room for an answer
table = ml.polar(ml.ones(T + 24, h // 2), angles)


def attend(attention, normed):
    """Return what attention adds to the rows, float32 [T, D]."""
    T = normed.shape[0]
    wq, wk, wv = attention.wq, attention.wk, attention.wv
    xq, xk, xv = (linear(normed, w).view(T, -1, h) for w in (wq, wk, wv))
    q = ml.rotary_embedding(xq, table[:T], args.rope_pairs).transpose(0, 1)
    k = ml.rotary_embedding(xk, table[:T], args.rope_pairs)
    k = k.repeat_interleave(args.group_size, dim=1).permute(1, 2, 0)
    v = xv.repeat_interleave(args.group_size, dim=1).transpose(0, 1)
    mask = ml.full((T, T), -math.inf).triu(1)
    scores = ml.matmul(q, k, dtype="float32") * (1 / math.sqrt(h)) + mask
    output = ml.matmul(scores.softmax(-1), v, dtype=args.dtype)
    return linear(output.transpose(0, 1).reshape(T, -1), attention.wo, dtype="float32")


def transform(part, normed):
    """Return what the feed-forward adds to the rows, float32 [T, D]."""
    hidden = ml.swiglu(linear(normed, part.w1), linear(normed, part.w3))
    return linear(hidden, part.w2, dtype="float32")

# %%
x = ml.get_rows(network.tok_embeddings, ml.tensor(ids)).float()
print(engine.check(x, stage=4, name="x"))
for number, layer in enumerate(network.layers):
    x = x + attend(layer.attention, layer.attention_norm(x))
    engine.check(x, stage=15, name="x", layer=number)
    x = x + transform(layer.feed_forward, layer.ffn_norm(x))
    engine.check(x, stage=18, name="x", layer=number)

logits = linear(network.norm(x[-1:].contiguous()), network.output, dtype="float32")
engine.check(logits, stage=19, name="logits")

# %% [markdown]
# The mask is needed here too. Without it the network would look at tokens that the engine has not drawn yet.
#
# ## Sampling by hand
#
# The temperature divides the logits. Below 1 it makes probable tokens more probable:

# %%
for temperature in (2.0, 1.0, 0.5):
    probabilities = (logits[0] / temperature).softmax(dim=-1)
    values, tokens = probabilities.topk(4)
    row = [f"{tokenizer.decode([t])!r} {p:.3f}" for p, t in zip(values, tokens)]
    print(temperature, ", ".join(row))

# %% [markdown]
# Top-p keeps the most probable tokens until their sum reaches p:

# %%
temperature, top_p = 1.5, 0.9


def kept_probabilities(logits):
    """Return the probabilities of the tokens that top-p keeps, and 0 for all others."""
    probabilities = (logits / temperature).softmax(dim=-1)
    values, order = probabilities.sort(descending=True)
    before = values.cumsum(dim=0) - values  # the sum of all more probable tokens
    removed = order[before >= top_p]
    probabilities[removed] = 0
    return probabilities


kept = kept_probabilities(logits[0])
(kept > 0).sum()

# %% [markdown]
# The kept probabilities lie side by side on a line, in the order of the ids. A random number is a point on that line, and
# the token whose part contains it is drawn:

# %%
def draw(kept, random):
    """Return the first id whose cumulative sum exceeds a share of the total."""
    ends = kept.cumsum(dim=0)
    return (ends <= random * ends[-1]).sum().item()


generator = ml.Generator(1).numpy
random = generator.random()
token = draw(kept, random)
print(f"random number {random:.6f}:", repr(tokenizer.decode([token])))

# %% [markdown]
# ## The whole answer

# %%
def forward(ids):
    """Return the logits after the last of the ids: float32 [V]."""
    x = ml.get_rows(network.tok_embeddings, ml.tensor(ids)).float()
    for layer in network.layers:
        x = x + attend(layer.attention, layer.attention_norm(x))
        x = x + transform(layer.feed_forward, layer.ffn_norm(x))
    last = network.norm(x[-1:].contiguous())
    return linear(last, network.output, dtype="float32")[0]


answer = [token]
while len(answer) < 24 and answer[-1] not in model.stop_ids:
    kept = kept_probabilities(forward(ids + answer))
    answer.append(draw(kept, generator.random()))

mine = tokenizer.decode([token for token in answer if token not in model.stop_ids])
mine

# %% [markdown]
# The engine with the same seed and the same settings draws the same text:

# %%
sampling = SamplingArgs(temperature=temperature, top_k=0, top_p=top_p, seed=1)
steps = InferenceEngine(model, 256).generate(ids, max_new_tokens=24, sampling=sampling)
theirs = "".join(step.text for step in steps)
assert mine == theirs
theirs

# %% [markdown]
# A file of a small instruct model can show more than the bundled one, which knows only short answers.
# [Chapter 16](../docs/16-sampling.md) explains the other filters, and [chapter 18](../docs/18-quantization.md) the other formats.
