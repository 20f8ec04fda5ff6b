"""The logit lens and the attribution of logits to parts of the residual stream.

All matrix products use the model's own ops, so the logits at the last depth equal the
engine's logits bit for bit. These functions must run while no op is observed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ml
from ..model import LlamaTransformer
from ..model.llama import RMSNorm

Floats = npt.NDArray[np.float32]
TOP = 5
# Bounds on the relative rounding error. Rounding to bfloat16 changes an activation by at
# most half of 2^-8 of its value. For float32, the bound is many times the error observed
# in tests.
_ROUNDING = {"bfloat16": 2.0**-8, "float32": 2.0**-18}


def read_lens(
    transformer: LlamaTransformer, streams: Floats, next_ids: list[int | None]
) -> dict[str, npt.NDArray[Any]]:
    """Compute the logit lens for several positions at each depth.

    Args:
        transformer: The network.
        streams: The residual streams, float32 [depths, P, D].
        next_ids: The token that follows each position, which is always included.

    Returns:
        Arrays by name, with n token entries for all positions together. The entries for
        position p in `ids` and `logits` are `starts[p]` to `starts[p + 1]`.
    """
    count = min(TOP, transformer.output.shape[0])
    ids = []
    logits = []
    sums = []
    entropies = []
    tops = []
    for position, extra in enumerate(next_ids):
        stream = ml.Tensor.from_numpy(np.ascontiguousarray(streams[:, position]))
        normed = transformer.norm.forward(stream)
        rows: Floats = transformer.logits(normed).numpy()  # [depths, V]
        top = np.argpartition(-rows, count - 1, axis=-1)[:, :count]
        order = np.lexsort((top, -np.take_along_axis(rows, top, -1)), axis=-1)
        top = np.take_along_axis(top, order, -1)  # equal logits are in id order
        union = np.unique(top if extra is None else np.append(top, extra))
        ids.append(union)
        logits.append(rows[:, union].T)
        log_sums, entropy_bits = zip(*map(_sum_and_entropy, rows), strict=True)
        sums.append(log_sums)
        entropies.append(entropy_bits)
        tops.append(top)
    return {
        # [n], for each position the union of the top 5 at all depths
        "ids": np.concatenate(ids).astype(np.int32),
        "starts": np.cumsum([0, *map(len, ids)], dtype=np.int32),  # [P + 1]
        "logits": np.concatenate(logits),  # [n, depths]
        "log_sums": np.array(sums, np.float64),  # [P, depths], log(sum(exp(logits)))
        "entropies": np.array(entropies, np.float32),  # [P, depths], in bits
        "top": np.array(tops, np.int32),  # [P, depths, 5], most probable first
    }


def _sum_and_entropy(row: Floats) -> tuple[float, float]:
    """Return log(sum(exp(row))), and the entropy of softmax(row) in bits."""
    exact = row.astype(np.float64)
    largest = exact.max()
    weights = np.exp(exact - largest)
    total = weights.sum()
    log_sum = float(largest + np.log(total))
    is_positive = weights > 0.0
    mean = float((weights[is_positive] * exact[is_positive]).sum() / total)
    return log_sum, (log_sum - mean) / float(np.log(2.0))


def attribute(
    transformer: LlamaTransformer, added: Floats, heads: list[Floats], token: int
) -> dict[str, Any]:
    """Attribute a logit to the parts that add up to the residual stream.

    logit = sum over parts of (part * scale * norm.weight) . output.weight[token]

    The scale of the final norm, 1 / rms, is treated as a constant. The sum is exact
    except that the activations are rounded before the output matrix is applied, so the
    logit is within `bound` of `sum`.

    Args:
        transformer: The network.
        added: The parts for the last position, float32 [1 + 2 L, D]: the embedding, and
            the result of each attention and feed-forward layer.
        heads: The outputs of the heads before `wo`, float32 [H*h] per layer.
        token: The id of the token whose logit is attributed.

    Returns:
        A dict with the contributions `parts`, float32 [1 + 2 L], and `heads`, float32
        [L, H], and the numbers `sum` and `bound`. If `wo` has a bias, which belongs to
        no head, `biases` has its contribution for each layer.
    """
    args = transformer.args
    output = transformer.output
    ids = ml.Tensor.from_integers([token])
    row = ml.get_rows(output, ids, dtype=ml.float32).numpy()[0].astype(np.float64)
    row /= getattr(args, "logits_scaling", 1.0)  # only some families scale the logits
    exact = np.add.reduce(added).astype(np.float64)  # the stream after the last layer
    gain = _norm_gain(transformer.norm, exact)
    shares = (added * (row * gain)).sum(-1)
    cap = getattr(args, "logits_cap", None)  # only some families cap the logits
    if cap is not None and shares.sum():
        # The cap is treated as a constant factor of all parts.
        factor = cap * np.tanh(shares.sum() / cap) / shares.sum()
        row *= factor
        shares *= factor
    h = args.head_dim
    H = args.n_heads
    by_head = np.empty((len(heads), H), np.float32)
    biases = []
    for layer, (block, output_of_heads) in enumerate(
        zip(transformer.layers, heads, strict=True)
    ):
        # Row i contains only the output of head i. The last row is zero.
        alone = np.zeros((H + 1, H, h), np.float32)
        alone[range(H), range(H)] = output_of_heads.reshape(H, h)
        x = ml.Tensor.from_numpy(alone.reshape(H + 1, H * h)).to(args.dtype)
        projected = block.attention.project(x).numpy()  # [H + 1, D]
        bias = projected[-1]
        each = projected[:-1] - bias
        # Only some families have this norm.
        norm_after = getattr(block, "norm_after_attention", None)
        if norm_after is not None:
            each = each * _norm_gain(norm_after, each.sum(0, dtype=np.float64))
        by_head[layer] = (each * (row * gain)).sum(-1)
        biases.append(float((bias * (row * gain)).sum()))
    bound = float(np.abs(exact * gain * row).sum()) * _ROUNDING[args.dtype.name]
    # With block dtypes, `linear_transformation` introduces further rounding.
    if isinstance(output.dtype, ml.BlockDType):
        normed = np.abs(exact * gain)
        levels = (
            np.abs(row).max() * normed.sum() * 2.0**-12 if output.dtype is ml.nf4 else 0.0
        )
        bound += float(np.abs(row).sum() * normed.max() * 2.0**-15 + levels)
    attribution: dict[str, Any] = {
        "parts": shares.astype(np.float32),
        "heads": by_head,
        "sum": float(shares.sum()),
        "bound": bound,
    }
    if any(biases):
        attribution["biases"] = biases
    return attribution


def _norm_gain(norm: RMSNorm, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the factor by which a norm multiplies each element of x [D]."""
    scale = 1.0 / np.sqrt(np.square(x).mean() + norm.eps)
    gain: npt.NDArray[np.float64] = norm.weight.numpy().astype(np.float64) * scale
    return gain
