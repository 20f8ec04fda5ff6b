"""Ops that make tensors out of numbers."""

import math
from collections.abc import Iterable

import numpy as np

from ..dtype import DType, float32, int32
from ..errors import ShapeError, TensorError
from ..layout import checked_shape
from ..scalars import checked_scalar
from ..tensor import Tensor

Number = int | float


def arange(
    start: Number, stop: Number | None = None, step: Number = 1, dtype: DType | None = None
) -> Tensor:
    """Count from `start` to `stop`, without it.

    out[i] = start + i * step,  i in [0, ceil((stop - start) / step)); computed in float64, rounded
    once

    Args:
        start: the first value; when it stands alone it is `stop`, and the first value is 0.
        stop: the end.
        step: not 0.
        dtype: of the result; int32 when all numbers are integers, else float32.

    Returns:
        A tensor [n].

    Raises:
        TensorError: a step of 0, a number that is not finite, or a value beyond the dtype.
    """
    first, end = (0, start) if stop is None else (start, stop)
    numbers = (first, end, step)
    if step == 0 or not all(math.isfinite(number) for number in numbers):
        raise TensorError(
            f"[arange] start, stop and step must be finite, and step != 0: {first}, {end}, {step}"
        )
    count = max(0, math.ceil((end - first) / step))
    if dtype is None:
        dtype = int32 if all(isinstance(number, int) for number in numbers) else float32
    result = Tensor.empty((count,), dtype)
    if count:
        # The ends are the extremes, so checking them checks every value between.
        checked_scalar("arange", first, dtype)
        checked_scalar("arange", first + (count - 1) * step, dtype)
        with np.errstate(over="ignore"):
            result.numpy()[...] = (first + np.arange(count) * step).astype(dtype.numpy_dtype)
    return result


def full(shape: Iterable[int], value: complex, dtype: DType = float32) -> Tensor:
    """Fill a new tensor with one value.

    out[...] = value

    Args:
        shape: sizes.
        value: a number of the kind of the dtype.
        dtype: of the result.

    Returns:
        A tensor of that shape.

    Raises:
        ShapeError: a size that is negative or no integer.
        DTypeError: a value of another kind.
        TensorError: an integer that the dtype cannot hold.
    """
    scalar = checked_scalar("full", value, dtype)
    result = Tensor._empty(checked_shape("full", shape), dtype)
    result.numpy()[...] = scalar
    return result


def zeros(shape: Iterable[int], dtype: DType = float32) -> Tensor:
    """Make a tensor of zeros; arguments and errors as in `full`."""
    return full(shape, 0, dtype)


def ones(shape: Iterable[int], dtype: DType = float32) -> Tensor:
    """Make a tensor of ones; arguments and errors as in `full`."""
    return full(shape, 1, dtype)


def full_like(x: Tensor, value: complex) -> Tensor:
    """Fill a new tensor of the shape and dtype of `x` with one value; errors as in `full`."""
    return full(x.shape, value, x.dtype)


def zeros_like(x: Tensor) -> Tensor:
    """Make a tensor of zeros of the shape and dtype of `x`."""
    return full(x.shape, 0, x.dtype)


def ones_like(x: Tensor) -> Tensor:
    """Make a tensor of ones of the shape and dtype of `x`."""
    return full(x.shape, 1, x.dtype)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Keep the upper triangle and set the rest to zero.

    out[..., i, j] = x[..., i, j] if j - i >= diagonal else 0

    Args:
        x: a tensor [..., rows, columns] of any dtype.
        diagonal: the first one that is kept; 0 is the main one, 1 the next above.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ShapeError: fewer than two dimensions.
    """
    if x.ndim < 2:
        raise ShapeError(f"[triu] ndim must be >= 2: {x.ndim} (shape {list(x.shape)})")
    rows, columns = x.shape[-2:]
    kept = np.arange(columns) - np.arange(rows)[:, None] >= diagonal
    result = zeros_like(x)
    np.copyto(result.bits(), x.bits(), where=kept)
    return result
