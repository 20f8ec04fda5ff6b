"""What the residual stream means in tokens: the logit lens, and who promoted a token.

All products are the model's own ops, so that the last depth has the bits of the engine's logits.
These functions are called while no op is observed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ml
from ..model import LlamaTransformer

Floats = npt.NDArray[np.float32]
TOP = 5
# A product with bfloat16 activations rounds each of them by at most half of 2^-8 of itself; the
# sums of float32 are bounded by what tests see of them, many times over.
_ROUNDING = {"bfloat16": 2.0**-8, "float32": 2.0**-18}


@dataclass(frozen=True)
class Lens:
    """The logit lens of P positions."""

    ids: npt.NDArray[np.int32]  # [n] once among the top 5 of a position; positions in turn
    starts: npt.NDArray[np.int32]  # [P + 1], where those of each position begin
    logits: Floats  # [n, depths] of these tokens
    log_sums: npt.NDArray[np.float64]  # [P, depths], log(sum(exp(logits))) over the vocabulary
    entropies: Floats  # [P, depths], in bits
    top: npt.NDArray[np.int32]  # [P, depths, 5], ids, the most probable first


def logits_of(transformer: LlamaTransformer, stream: Floats) -> Floats:
    """Return the logits [n, V] of rows of the residual stream [n, D], by the model's own ops."""
    normed = transformer.norm.forward(ml.Tensor.from_numpy(np.ascontiguousarray(stream)))
    result: Floats = ml.linear_transformation(normed, transformer.output, dtype=ml.float32).numpy()
    return result


def read_lens(transformer: LlamaTransformer, streams: Floats, wanted: list[int | None]) -> Lens:
    """Read the residual streams, float32 [depths, P, D], of the embeddings and of each layer.

    Of each position the wanted token, the one that follows, is kept as well.
    """
    count = min(TOP, transformer.output.shape[0])
    ids, logits, sums, entropies, tops = [], [], [], [], []
    for position, extra in enumerate(wanted):
        rows = logits_of(transformer, streams[:, position])  # [depths, V]
        top = np.argpartition(-rows, count - 1, axis=-1)[:, :count]
        order = np.lexsort((top, -np.take_along_axis(rows, top, -1)), axis=-1)
        top = np.take_along_axis(top, order, -1)  # the lowest id first among equals
        union = np.unique(top if extra is None else np.append(top, extra))
        ids.append(union)
        logits.append(rows[:, union].T)
        log_sums, in_bits = zip(*map(_sum_and_entropy, rows), strict=True)
        sums.append(log_sums)
        entropies.append(in_bits)
        tops.append(top)
    return Lens(
        np.concatenate(ids).astype(np.int32),
        np.cumsum([0, *map(len, ids)], dtype=np.int32),
        np.concatenate(logits),
        np.array(sums, np.float64),
        np.array(entropies, np.float32),
        np.array(tops, np.int32),
    )


def _sum_and_entropy(row: Floats) -> tuple[float, float]:
    """Return log(sum(exp(row))) and the entropy of its softmax in bits."""
    exact = row.astype(np.float64)
    largest = exact.max()
    weights = np.exp(exact - largest)
    total = weights.sum()
    log_sum = float(largest + np.log(total))
    shown = weights > 0.0
    mean = float((weights[shown] * exact[shown]).sum() / total)
    return log_sum, (log_sum - mean) / float(np.log(2.0))


def attribute(
    transformer: LlamaTransformer, added: Floats, heads: list[Floats], token: int
) -> dict[str, Any]:
    """Divide a logit among the parts that add up to the residual stream.

    logit = sum over parts of (part * scale * norm.weight) . output.weight[token], with the scale of
    the final norm, 1 / rms, held fixed. It is exact up to the rounding of the activations that the
    output matrix reads: the logit is within the `bound` of the `sum`.

    What the last row of a pass is made of, float32 [1 + 2 L, D], are the embedding and what each
    attention and feed-forward added; its `parts` are float32 [1 + 2 L]. From the outputs of the
    heads before `wo`, float32 [H*h] for each layer, follow `heads`, float32 [L, H].
    """
    args = transformer.args
    ids = ml.Tensor.from_integers([token])
    row = ml.get_rows(transformer.output, ids, dtype=ml.float32).numpy()[0].astype(np.float64)
    exact = np.add.reduce(added).astype(np.float64)  # the stream after the last layer
    scale = 1.0 / np.sqrt(np.square(exact).mean() + args.norm_eps)
    direction = row * transformer.norm.weight.numpy().astype(np.float64) * scale  # [D]
    shares = (added * direction).sum(-1)
    h, H = args.head_dim, args.n_heads
    by_head = np.empty((len(heads), H), np.float32)
    for layer, output in enumerate(heads):
        alone = np.zeros((H, H, h), np.float32)  # row i: only head i speaks
        alone[range(H), range(H)] = output.reshape(H, h)
        x = ml.Tensor.from_numpy(alone.reshape(H, H * h)).to(args.dtype)
        wo = transformer.layers[layer].attention.wo
        each = ml.linear_transformation(x, wo, dtype=ml.float32).numpy()  # [H, D]
        by_head[layer] = (each * direction).sum(-1)
    bound = float(np.abs(exact * direction).sum()) * _ROUNDING[args.dtype.name]
    output_dtype = transformer.output.dtype
    if isinstance(output_dtype, ml.BlockDType):  # what `linear_transformation` rounds besides
        normed = np.abs(exact * scale * transformer.norm.weight.numpy().astype(np.float64))
        levels = np.abs(row).max() * normed.sum() * 2.0**-12 if output_dtype is ml.nf4 else 0.0
        bound += float(np.abs(row).sum() * normed.max() * 2.0**-15 + levels)
    return {
        "parts": shares.astype(np.float32),
        "heads": by_head,
        "sum": float(shares.sum()),
        "bound": bound,
    }
