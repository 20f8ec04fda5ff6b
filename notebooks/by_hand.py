# Generated from docs/BY-HAND.md by `python -m tools.update_docs`.

# %% [markdown]
# # By hand: the network in an interpreter
#
# In this session you compute the next token of a prompt yourself, from the text to the drawn token. You need Python and
# this package, but neither PyTorch nor NumPy. After each stage, one line proves that your tensor equals the tensor of the
# engine in every bit. The session ends with the whole network in 20 lines.
#
# In a clone of this repository, install the package with `pip install -e .` ([what it needs](../README.md#chat)). Then
# start `python` in the root of the clone, and type the cells. In the interpreter, an empty line ends a function or a
# loop.
#
# You can also run them as a [notebook](../notebooks/by_hand.ipynb) or as a [program](../notebooks/by_hand.py); all three
# have the same cells. The notebook shows each tensor as a table and as a heat map:
#
# ```sh
# pip install -e ".[notebook]"
# jupyter lab notebooks/by_hand.ipynb
# ```
#
# The examples of this page continue each other, so type all of them, in order. The page imports `src`, the name of the
# package in a clone; anywhere else it is `llama_bolts`.
#
# ## Tensors in eight lines
#
# If you know PyTorch, skip this section. Names and arguments are PyTorch's, with three differences: weights are tensors
# and not modules, an op takes operands of one dtype (`.float()` and `.to(dtype)` convert), and there are no gradients and
# no devices.
#
# A *tensor* is an array of numbers. A row of numbers has one dimension, a matrix has two:

# %%
from llama_bolts import ml

row = ml.tensor([1.0, 2.0, 3.0])  # shape [3]
matrix = ml.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])  # 2 rows and 3 columns: [2, 3]
print(row * 10, row + row)  # operators work element by element
print(matrix * row)  # each row of the matrix times the same row
print(matrix @ row)  # multiply each row of the matrix with the row, then add up
print(matrix[1], matrix[:, 0])  # the second row; the first column
print(matrix.sum(dim=-1))  # dim names the dimension that disappears; -1 is the last one
print(row.to("bfloat16").dtype)  # bfloat16 has 16 bits, float32 has 32

# %% [markdown]
# `@` is the product of two matrices, or of a matrix and a row: each result is the *dot product* of a row of the left and
# a column of the right one. Comments show shapes: `# [T, D] -> [T, F]` is read "a matrix of T rows and D columns becomes
# one of T rows and F columns". [Chapter 7](../docs/07-tensor.md) explains more.
#
# ## The model
#
# `load_model()` loads the bundled model. With `load_model("smollm2", dequantize=True)` instead, all cells run on SmolLM2,
# and only the printed numbers differ.

# %%
import math

from llama_bolts import ml
from llama_bolts.inference import Message, encode_chat
from llama_bolts.model import load_model
from llama_bolts.model.recording import record_pass
from llama_bolts.model.rope import pair_frequencies

model = load_model()
args = model.args
network = model.transformer
network

# %% [markdown]
# The tree shows all weights with their shapes: the numbers that training has found. A matrix is stored as `[out, in]`, so
# `x @ w.T` multiplies by it. `linear_transformation` computes the same product in the engine's order of summation. Sums
# in another order differ in their last bits, and then `engine.check` below raises an error.

# %%
linear = ml.linear_transformation  # linear(x, w) is x @ w.T
D, H, K, G, h, F, V, L = args.sizes.values()
args.sizes

# %% [markdown]
# Each letter is one size, everywhere in this project. A token is a row of D numbers. There are H query heads and K key
# heads, so G query heads share a key head; a head has h numbers. The feed-forward part is F wide, V tokens are in the
# vocabulary, and L layers follow each other ([legend](../docs/LEGEND.md)).
#
# ## Text becomes ids
#
# A chat model expects its question in a format with special tokens. Each format has its own ([chapter 12](../docs/12-asking.md)),
# so the library writes it:

# %%
tokenizer = model.tokenizer
question = "What is the capital of Massachusetts? Answer in one word."
ids = encode_chat(tokenizer, [Message("user", question)])
T = len(ids)
ml.name_sizes(T=T, D=D, H=H, K=K, h=h, F=F, V=V)  # the letters that a notebook shows
prompt = tokenizer.decode(ids)
prompt

# %% [markdown]
# The names between `<|` and `|>` are one token each. Look at how the text is cut:

# %%
[tokenizer.decode([token]) for token in ids]

# %% [markdown]
# There is a trap. `encode` reads these names as ordinary text, so that no user can type a special token. For a prompt
# that you wrote yourself, `encode_prompt` reads them as special tokens:

# %%
len(tokenizer.encode(prompt)), len(tokenizer.encode_prompt(prompt)), T

# %% [markdown]
# With the first list the model would see no question at all, and nothing would warn you.
#
# The engine runs the same ids once and keeps every tensor of the way. `engine.check` compares a tensor with one of them
# and raises an error if a single bit differs:

# %%
engine = record_pass(model, ids)

# %% [markdown]
# ## Ids become vectors: stage 4
#
# The embedding table has one row for each token. An id selects a row:

# %%
x = network.tok_embeddings[ids]  # [T] -> [T, D]
x

# %% [markdown]
# From here on, `x` has one row for each token: D numbers that stand for what the network knows about it. All later stages
# change these rows.

# %%
x = x.float()  # the residual stream is float32
engine.check(x, stage=4, name="x")

# %% [markdown]
# ## The norm before attention: stage 6
#
# Each row is scaled to a root mean square of 1, then each column is multiplied by a learned weight. `mean(dim=-1)` is the
# mean of each row, and `keepdim=True` keeps the result as a column `[T, 1]`, which divides each row by its own number:

# %%
layer = network.layers[0]
mean_square = x.pow(2).mean(dim=-1, keepdim=True)
normed = x / (mean_square + args.norm_eps).sqrt() * layer.attention_norm.weight.float()
normed = normed.to(args.dtype)  # the inputs of the matrices are rounded
(normed == layer.attention_norm(x)).all()

# %%
normed = layer.attention_norm(x)
engine.check(normed, stage=6, name="normed", layer=0)

# %% [markdown]
# ## Queries, keys and values: stages 8 and 9
#
# Three matrices turn each row into a query (what this token looks for), a key (what it offers) and a value (what it
# passes on):

# %%
attention = layer.attention
xq = linear(normed, attention.wq)  # [T, D] -> [T, H*h]
xk = linear(normed, attention.wk)  # [T, D] -> [T, K*h]
xv = linear(normed, attention.wv)  # [T, D] -> [T, K*h]
print(engine.check(xq, stage=8, name="xq", layer=0))
xq = xq.view(T, H, h)  # heads
xk = xk.view(T, K, h)
xv = xv.view(T, K, h)
engine.check(xv, stage=9, name="xv", layer=0)

# %% [markdown]
# ## Position becomes an angle: stage 10
#
# So far no token knows where it is. RoPE rotates pairs of elements by an angle that is the position times a frequency
# ([chapter 10](../docs/10-rope.md)). The frequencies fall from 1 radian per position to almost none, and Llama 3.1 lowers the
# slow ones further, for long contexts:

# %%
frequencies = pair_frequencies(h, args.rope_theta, args.rope_scaling)  # [h/2]
plain = 1 / args.rope_theta ** (ml.arange(0, h, 2) / h)
print(frequencies)
print(
    "scaled for long contexts:", ((frequencies / plain) < 0.99).sum().item(), "of", h // 2
)
angles = ml.outer(ml.arange(T).float(), frequencies)  # [T], [h/2] -> [T, h/2]
angles[:4, :5]

# %% [markdown]
# `outer` multiplies each position with each frequency. A rotation of one pair is a 2 x 2 matrix. Take the last token and
# the first pair of its first query:

# %%
first, second = (0, 1) if args.rope_pairs == "interleaved" else (0, h // 2)
pair = ml.stack([xq[-1, 0, first], xq[-1, 0, second]]).float()
angle = angles[-1, 0]
rotation = ml.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])
print(rotation)
print(pair, "->", rotation @ pair)

# %% [markdown]
# The length of the pair stays the same; only its direction changes. For all pairs at once, take all first elements and
# all second elements. The weights decide which elements belong together: neighbours in Meta's files, the two halves of a
# head in those of Hugging Face. A complex number stores a cosine and a sine together, and `unsqueeze(1)` adds a dimension
# of size 1, so that all heads of a token are rotated by the same angles. In an index, `...` stands for all dimensions
# that are not named:

# %%
table = ml.polar(ml.ones(T, h // 2), angles)  # cos + i sin, complex64 [T, h/2]
print(engine.check(table, stage=4, name="rotations"))
cos = table.view_as_real()[..., 0].unsqueeze(1)  # [T, 1, h/2]
sin = table.view_as_real()[..., 1].unsqueeze(1)


def rotate(heads, pairs=args.rope_pairs):
    """Rotate the pairs of heads [T, n, h] by the angles of their positions."""
    heads = heads.float()
    if pairs == "interleaved":
        a, b = heads[..., 0::2], heads[..., 1::2]
    else:
        a, b = heads[..., : h // 2], heads[..., h // 2 :]
    rotated = [a * cos - b * sin, a * sin + b * cos]
    if pairs == "interleaved":
        return ml.stack(rotated, dim=-1).flatten(-2).to(args.dtype)
    return ml.cat(rotated, dim=-1).to(args.dtype)


rotated_q = rotate(xq)
rotated_k = rotate(xk)
print(engine.check(rotated_k, stage=10, name="xk", layer=0))
engine.check(rotated_q, stage=10, name="xq", layer=0)

# %% [markdown]
# ## The cache, and heads that share keys: stages 11 and 12
#
# The engine keeps keys and values, because the next token needs them again. Here the cache is a pair of tensors:

# %%
cache_k = rotated_k
cache_v = xv
keys = cache_k.repeat_interleave(G, dim=1)  # [S, K, h] -> [S, H, h]
values = cache_v.repeat_interleave(G, dim=1)
engine.check(keys, stage=12, name="keys", layer=0, op="repeat_heads")

# %% [markdown]
# G query heads share one key head, so that the cache is G times smaller.
#
# ## Scores, mask and weights: stage 13
#
# The score of a query and a key is their dot product, divided by the square root of the size of a head. It is large if
# both point in the same direction. `permute` reorders dimensions, so that one product computes the scores of all heads.
# The engine multiplies by `1 / sqrt(h)`; a division by `sqrt(h)` would differ in the last bits:

# %%
q = rotated_q.transpose(0, 1)  # [T, H, h] -> [H, T, h]
k = keys.permute(1, 2, 0)  # [S, H, h] -> [H, h, S]
scores = ml.matmul(q, k, dtype="float32") * (1 / math.sqrt(h))  # [H, T, S]
engine.check(scores, stage=13, name="scores", layer=0, op="multiply")

# %% [markdown]
# A token must not see what comes after it. The mask is minus infinity there, and 0 elsewhere:

# %%
mask = ml.full((T, T), -math.inf).triu(1)
mask

# %% [markdown]
# *Softmax* turns the scores of a row into shares: the exponential of each, divided by the sum of all. The exponential of
# minus infinity is 0:

# %%
scores = scores + mask  # [H, T, S] + [T, S]
weights = scores.softmax(dim=-1)  # each row sums to 1
print(engine.check(weights, stage=13, name="weights", layer=0))
weights[2]  # head 2: a row for each token, a column for each token that it looks at

# %% [markdown]
# Which tokens does the last token look at in each head?

# %%
for head in range(H):
    most, place = weights[head, -1].max(dim=0)
    print(f"head {head}: {most:.3f} at {tokenizer.decode([ids[place]])!r}")

# %% [markdown]
# ## The weighted sum: stages 14 and 15
#
# Each token receives the values of the tokens that it looks at, multiplied by the weights and added up. `wo` combines the
# results of all heads:

# %%
output = ml.matmul(weights, values.transpose(0, 1), dtype=args.dtype)  # [H, T, h]
output = output.transpose(0, 1).reshape(T, H * h)  # the heads side by side
print(engine.check(output, stage=14, name="output", layer=0, op="reshape"))
x = x + linear(output, attention.wo, dtype="float32")  # the residual
engine.check(x, stage=15, name="x", layer=0)

# %% [markdown]
# Attention does not replace `x`, it adds to it. That sum runs through all layers, and is therefore called the residual
# stream.
#
# ## Feed-forward: stages 16 to 18
#
# Attention moves information between tokens. The feed-forward part then transforms each row alone: `w1` and `w3` widen it
# to F numbers, `silu(z) = z / (1 + exp(-z))` lets some of them pass, and `w2` narrows the row again:

# %%
feed_forward = layer.feed_forward
normed = layer.ffn_norm(x)
gate = linear(normed, feed_forward.w1).float()  # [T, D] -> [T, F]
up = linear(normed, feed_forward.w3).float()
hidden = (ml.silu(gate) * up).to(args.dtype)
print(engine.check(hidden, stage=17, name="hidden", layer=0))
x = x + linear(hidden, feed_forward.w2, dtype="float32")  # [T, F] -> [T, D]
engine.check(x, stage=18, name="x", layer=0)

# %% [markdown]
# That was one layer. All layers do the same with their own weights.
#
# ## The whole network in 20 lines
#
# A last norm and the matrix `output` turn the row of the last token into one number for each token of the vocabulary, its
# *logit*. This function is everything so far, for all layers:

# %%
def forward(ids, pairs=args.rope_pairs):
    """Return the logits after the last of the ids: float32 [1, V]."""
    T = len(ids)
    x = network.tok_embeddings[ids].float()
    mask = ml.full((T, T), -math.inf).triu(1)
    for layer in network.layers:
        a, f = layer.attention, layer.feed_forward
        normed = ml.rms_norm(x, layer.attention_norm.weight, args.norm_eps, args.dtype)
        xq, xk, xv = (linear(normed, w).view(T, -1, h) for w in (a.wq, a.wk, a.wv))
        q = ml.rotary_embedding(xq, table[:T], pairs).transpose(0, 1)
        k = ml.rotary_embedding(xk, table[:T], pairs).repeat_interleave(G, dim=1)
        v = xv.repeat_interleave(G, dim=1).transpose(0, 1)
        scores = ml.matmul(q, k.permute(1, 2, 0), dtype="float32") * (1 / math.sqrt(h))
        weights = (scores + mask).softmax(dim=-1)
        output = ml.matmul(weights, v, dtype=args.dtype).transpose(0, 1).reshape(T, H * h)
        x = x + linear(output, a.wo, dtype="float32")
        normed = ml.rms_norm(x, layer.ffn_norm.weight, args.norm_eps, args.dtype)
        hidden = ml.swiglu(linear(normed, f.w1), linear(normed, f.w3))
        x = x + linear(hidden, f.w2, dtype="float32")
    last = ml.rms_norm(x[-1:], network.norm.weight, args.norm_eps, args.dtype)
    return linear(last, network.output, dtype="float32")


logits = forward(ids)
print(engine.check(logits, stage=19, name="logits"))
(logits == engine.logits).all()

# %% [markdown]
# All logits are equal to the engine's in every bit. The largest one belongs to the answer:

# %%
best, tokens = logits[0].topk(5)
for logit, token in zip(best, tokens):
    print(f"{logit:8.3f} {tokenizer.decode([token])!r}")

# %% [markdown]
# ## A wrong cell
#
# The other pairing of the elements, as in `rotate_half` of many notebooks, is wrong for these weights. Look at what
# happens:

# %%
other = "halves" if args.rope_pairs == "interleaved" else "interleaved"
wrong = forward(ids, pairs=other)
rms = (wrong - logits).pow(2).mean().sqrt()
print("the answer of the wrong network:", repr(tokenizer.decode([wrong[0].argmax()])))
print(f"its logits are wrong by an rms of {rms:.2f}")

# %% [markdown]
# The answer of the bundled model is still right. An answer proves nothing: **compare logits, not answers.**
#
# ## From logits to a token: stage 20
#
# At temperature 0 the largest logit wins. Otherwise the logits become probabilities, and a random number draws one of
# them. Divide by the temperature, keep the most probable tokens that make up `top_p` together, and draw an index with
# `multinomial`:

# %%
temperature, top_p = 0.6, 0.9
probabilities = (logits[0] / temperature).softmax(dim=-1)
values, order = probabilities.sort(descending=True)
before = values.cumsum(dim=0) - values  # the sum of all more probable tokens
kept = before < top_p
print(kept.sum().item(), "tokens are left")
drawn = ml.multinomial(values * kept.float(), 1, generator=ml.Generator(1))
token = order[drawn].item()
tokenizer.decode([token])

# %% [markdown]
# ## A loop that generates: stage 21

# %%
angles = ml.outer(ml.arange(T + 16).float(), frequencies)  # room for an answer
table = ml.polar(ml.ones(T + 16, h // 2), angles)
answer = []
while len(answer) < 16:
    token = forward(ids + answer).argmax().item()
    if token in model.stop_ids:
        break
    answer.append(token)

tokenizer.decode(answer)

# %% [markdown]
# This loop runs the whole text again for each token. The engine keeps the keys and values in a cache instead, with
# the same bits ([chapter 11](../docs/11-kv-cache.md)).
#
# ## What next
#
# - [One head at a time](../docs/BY-HAND-HEADS.md): the same network from its files, head by head.
# - [NF4 by hand](../docs/BY-HAND-NF4.md): weights of four bits, and sampling step by step.
# - [Chapter 14](../docs/14-forward-pass.md) explains each stage with its diagram, its code and its lines in the log.
