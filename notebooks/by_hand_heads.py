# Generated from docs/BY-HAND-HEADS.md by `python -m tools.update_docs`.

# %% [markdown]
# # By hand: one head at a time
#
# [The first session](../docs/BY-HAND.md) computes all heads at once. In this one you take the weights of one head out of the
# matrices, follow it alone, and then repeat the same for all heads and layers. It continues a text instead of a
# chat. Each result is compared with the engine's in every bit.
#
# All cells are also a [notebook](../notebooks/by_hand_heads.ipynb) and a [program](../notebooks/by_hand_heads.py). The
# examples of this page continue each other.
#
# ## The weights by their names
#
# With `load_model("smollm2", dequantize=True)` instead, all cells run on SmolLM2.

# %%
import math

from llama_bolts import ml
from llama_bolts.model import load_model
from llama_bolts.model.recording import record_pass
from llama_bolts.model.rope import pair_frequencies

model = load_model()
args = model.args
weights = model.tensors
for name in weights:
    if name.startswith("layers.0.") or not name.startswith("layers."):
        print(f"{name:40} {list(weights[name].shape)}")

# %% [markdown]
# The names are Meta's; files of Hugging Face have others, such as `model.layers.0.self_attn.q_proj.weight`, which the
# loader maps to these.
#
# | weight | used in |
# |---|---|
# | `tok_embeddings` | the vectors of the tokens |
# | `attention_norm`, `ffn_norm`, `norm` | the norms |
# | `wq`, `wk`, `wv`, `wo` | attention |
# | `w1`, `w2`, `w3` | feed-forward |
# | `output` | the logits; if absent, `tok_embeddings` is used again |
#
# ## Tokens and embeddings

# %%
tokenizer = model.tokenizer
ids = tokenizer.encode("The capital of France is", bos=tokenizer.adds_bos)
T = len(ids)
engine = record_pass(model, ids)
[(token, tokenizer.decode([token])) for token in ids]

# %%
x = weights["tok_embeddings.weight"][ids].float()  # [T, D]
engine.check(x, stage=4, name="x")

# %% [markdown]
# ## The norm
#
# RMS norm, written from its formula:

# %%
def rms_norm(x, weight):
    """Scale each row of x [T, D] to a root mean square of 1, then multiply by weight."""
    scale = (x.pow(2).mean(-1, keepdim=True) + args.norm_eps).sqrt()
    return (x / scale * weight.float()).to(args.dtype)


normed = ml.rms_norm(
    x, weights["layers.0.attention_norm.weight"], args.norm_eps, args.dtype
)
mine = rms_norm(x, weights["layers.0.attention_norm.weight"])
print("by the formula, elements that differ:", (mine != normed).sum().item())
engine.check(normed, stage=6, name="normed", layer=0)

# %% [markdown]
# The op sums in another order than the formula, so a few elements may round to the other side; the op is what the
# engine uses.
#
# ## Rotations as complex numbers
#
# A pair (a, b) of a head is the complex number a + ib. A rotation by an angle is a multiplication by a complex number of
# length 1:

# %%
h = args.head_dim
frequencies = pair_frequencies(h, args.rope_theta, args.rope_scaling)
angles = ml.outer(ml.arange(T).float(), frequencies)
freqs_cis = ml.polar(ml.ones(T, h // 2), angles)  # [T, h/2]
print(engine.check(freqs_cis, stage=4, name="rotations"))
freqs_cis[2, :4]  # position 2: the first four pairs

# %%
def rotate(head):
    """Rotate the pairs of one head [T, h] by the angles of their positions."""
    head = head.float()
    if args.rope_pairs == "interleaved":
        pairs = ml.stack([head[:, 0::2], head[:, 1::2]], dim=-1)  # neighbours
    else:
        pairs = ml.stack([head[:, : h // 2], head[:, h // 2 :]], dim=-1)  # two halves
    rotated = (pairs.view_as_complex() * freqs_cis).view_as_real()  # [T, h/2, 2]
    if args.rope_pairs == "interleaved":
        return rotated.flatten(1).to(args.dtype)
    return rotated.transpose(1, 2).flatten(1).to(args.dtype)

# %% [markdown]
# ## One head
#
# A head owns `h` rows of each matrix. With grouped queries, several query heads share the rows of one key head:

# %%
head = 2
group = args.n_heads // args.n_kv_heads
shared = head // group
wq = weights["layers.0.attention.wq.weight"][head * h : (head + 1) * h]
wk = weights["layers.0.attention.wk.weight"][shared * h : (shared + 1) * h]
wv = weights["layers.0.attention.wv.weight"][shared * h : (shared + 1) * h]
q = ml.linear_transformation(normed, wq)  # [T, D] -> [T, h]
k = ml.linear_transformation(normed, wk)
v = ml.linear_transformation(normed, wv)
(q == engine.tensor(9, "xq", layer=0)[:, head]).all()

# %%
q, k = rotate(q), rotate(k)
print((q == engine.tensor(10, "xq", layer=0)[:, head]).all().item())
(k == engine.tensor(10, "xk", layer=0)[:, shared]).all()

# %% [markdown]
# The scores of each token with each token, before the mask:

# %%
scores = ml.matmul(q, k.T, dtype="float32") * (1 / math.sqrt(h))  # [T, T]
print((scores == engine.tensor(13, "scores", 0, "multiply")[head]).all().item())
scores

# %% [markdown]
# The mask removes the tokens that come later, and softmax turns each row into weights:

# %%
later = ml.ones(T, T).triu(1).bool()
attention = scores.masked_fill(later, -math.inf).softmax(dim=-1)
print((attention == engine.tensor(13, "weights", 0)[head]).all().item())
for row, token in zip(attention, ids):
    shares = " ".join(f"{share:5.2f}" for share in row)
    print(f"{tokenizer.decode([token]):>20} {shares}")

# %% [markdown]
# The output of the head is the weighted sum of the values:

# %%
output = ml.matmul(attention, v, dtype=args.dtype)  # [T, h]
(output == engine.tensor(14, "output", 0, "matmul")[head]).all()

# %% [markdown]
# ## All heads
#
# The same for every head; then the outputs are put side by side:

# %%
def one_head(normed, layer, head):
    """Return the output of one head [T, h] for normed rows [T, D]."""
    name = f"layers.{layer}.attention"
    shared = head // group
    own = slice(head * h, (head + 1) * h)
    others = slice(shared * h, (shared + 1) * h)
    q = rotate(ml.linear_transformation(normed, weights[f"{name}.wq.weight"][own]))
    k = rotate(ml.linear_transformation(normed, weights[f"{name}.wk.weight"][others]))
    v = ml.linear_transformation(normed, weights[f"{name}.wv.weight"][others])
    scores = ml.matmul(q, k.T, dtype="float32") * (1 / math.sqrt(h))
    attention = scores.masked_fill(later, -math.inf).softmax(dim=-1)
    return ml.matmul(attention, v, dtype=args.dtype)


heads = [one_head(normed, 0, head) for head in range(args.n_heads)]
output = ml.cat(heads, dim=-1)  # [T, H*h]
engine.check(output, stage=14, name="output", layer=0, op="reshape")

# %%
wo = weights["layers.0.attention.wo.weight"]
x = x + ml.linear_transformation(output, wo, dtype="float32")
engine.check(x, stage=15, name="x", layer=0)

# %% [markdown]
# ## Feed-forward, and all layers

# %%
def feed_forward(x, layer):
    """Return the term that the feed-forward of a layer adds to x [T, D]."""
    name = f"layers.{layer}"
    w1, w2, w3 = (weights[f"{name}.feed_forward.w{i}.weight"] for i in (1, 2, 3))
    normed = ml.rms_norm(x, weights[f"{name}.ffn_norm.weight"], args.norm_eps, args.dtype)
    gate = ml.linear_transformation(normed, w1)
    up = ml.linear_transformation(normed, w3)
    return ml.linear_transformation(ml.swiglu(gate, up), w2, dtype="float32")


x = x + feed_forward(x, 0)
print(engine.check(x, stage=18, name="x", layer=0))
for layer in range(1, args.n_layers):
    name = f"layers.{layer}.attention"
    normed = ml.rms_norm(x, weights[f"{name}_norm.weight"], args.norm_eps, args.dtype)
    output = ml.cat([one_head(normed, layer, i) for i in range(args.n_heads)], dim=-1)
    wo = weights[f"{name}.wo.weight"]
    x = x + ml.linear_transformation(output, wo, dtype="float32")
    x = x + feed_forward(x, layer)

engine.check(x, stage=18, name="x", layer=args.n_layers - 1)

# %%
last = ml.rms_norm(x[-1:], weights["norm.weight"], args.norm_eps, args.dtype)
table = weights.get("output.weight", weights["tok_embeddings.weight"])
logits = ml.linear_transformation(last, table, dtype="float32")  # [1, V]
print(engine.check(logits, stage=19, name="logits"))
values, tokens = logits[0].softmax(-1).topk(5)
[(tokenizer.decode([token]), f"{value:.3f}") for value, token in zip(values, tokens)]

# %% [markdown]
# Next: [NF4 by hand](../docs/BY-HAND-NF4.md)
