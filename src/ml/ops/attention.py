"""Ops that only attention needs."""

from .. import native
from ..dtype import complex64
from ..errors import DTypeError, ShapeError
from ..layout import checked_ints
from ..tensor import Tensor
from .support import check_float, kernel_dtype, kernel_operand


def repeat_heads(x: Tensor, repeats: int) -> Tensor:
    """Repeat each key or value head, so that there is one for every query head.

    out[s, k * G + g, :] = x[s, k, :],  g in [0, G)

    Args:
        x: a tensor [S, K, h] of any dtype.
        repeats: G, how many query heads share a key/value head.

    Returns:
        A tensor [S, H, h] with H = K * G; `x` itself if G is 1.

    Raises:
        ShapeError: not three dimensions, or G below 1.

    Source: `repeat_kv` of meta-llama/llama-models, models/llama3/model.py.
    """
    if x.ndim != 3:
        raise ShapeError(f"[repeat_heads] ndim must equal 3: {x.ndim} (shape {list(x.shape)})")
    repeats = checked_ints("repeat_heads", "repeats", (repeats,))[0]
    if repeats < 1:
        raise ShapeError(f"[repeat_heads] repeats must be >= 1: {repeats}")
    if repeats == 1:
        return x
    S, K, h = x.shape
    result = Tensor._empty((S, K, repeats, h), x.dtype)
    result.bits()[...] = x.bits()[:, :, None, :]
    return result.reshape(S, K * repeats, h)


def rotary_embedding(x: Tensor, frequencies: Tensor) -> Tensor:
    """Turn pairs of neighbours by the angle of their position.

    out[t, n, 2j] + i out[t, n, 2j + 1] = (x[t, n, 2j] + i x[t, n, 2j + 1]) * frequencies[t, j],
    in float32, rounded once

    The same bits as `multiply` gives for the pairs read as complex numbers.

    Args:
        x: a real floating-point tensor [T, heads, h], queries or keys.
        frequencies: a complex64 tensor [T, h / 2], cos + i sin for each position and pair.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        DTypeError: not floating point, or frequencies that are not complex64.
        ShapeError: the sizes do not fit together.

    Source: Su et al., RoFormer, 2021; `apply_rotary_emb` of meta-llama/llama-models.
    """
    check_float("rotary_embedding", x)
    if frequencies.dtype is not complex64:
        raise DTypeError(
            f"[rotary_embedding] frequencies.dtype must equal complex64: {frequencies.dtype}"
        )
    if x.ndim != 3:
        raise ShapeError(
            f"[rotary_embedding] x.ndim must equal 3: {x.ndim} (shape {list(x.shape)})"
        )
    T, _, h = x.shape
    if h % 2 or frequencies.shape != (T, h // 2):
        raise ShapeError(
            f"[rotary_embedding] frequencies.shape must equal (x.shape[0], x.shape[2] / 2): "
            f"{list(frequencies.shape)} != [{T}, {h / 2:g}] (x {list(x.shape)})"
        )
    result = Tensor._empty(x.shape, kernel_dtype(x.dtype))
    native.rotary(kernel_operand(x), frequencies.contiguous(), result)
    return result.to(x.dtype)
