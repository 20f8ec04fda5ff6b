"""Ops that bring a dimension together: sums, maxima, norms."""

import numpy as np

from .. import native
from ..dtype import DType, int32
from ..errors import DTypeError, ShapeError
from ..layout import resolve_dim
from ..tensor import Tensor
from .support import (
    as_rows,
    check_float,
    check_float_result,
    check_ndim_at_least,
    empty_float32,
    float32_array,
    kernel_dtype,
    kernel_operand,
)


def mean(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """Average over a dimension.

    out[..., ...] = sum_i x[..., i, ...] / n, accumulated in float32, rounded once

    Args:
        x: a real floating-point tensor.
        dim: the dimension, negative ones counted from the end.
        keepdim: leave the dimension in place with size 1.

    Returns:
        A tensor of the dtype of `x` without the dimension; NaN where it had no elements.

    Raises:
        DTypeError: not floating point.
        IndexOutOfRangeError: there is no such dimension.
    """
    check_float("mean", x)
    dim = resolve_dim("mean", dim, x.ndim)
    kept = (1,) if keepdim else ()
    result = empty_float32((*x.shape[:dim], *kept, *x.shape[dim + 1 :]))
    out = result.numpy()
    with np.errstate(all="ignore"):
        np.add.reduce(float32_array(x), axis=dim, keepdims=keepdim, out=out)
        np.divide(out, np.float32(x.shape[dim]), out=out)
    return result.to(x.dtype)


def softmax(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """Turn scores into weights that add up to 1.

    out[i] = exp(x[i] - max(x)) / sum_j exp(x[j] - max(x)), along `dim`, in float32, rounded once

    Args:
        x: a real floating-point tensor; -inf gets the weight 0.
        dim: the dimension, negative ones counted from the end.
        dtype: of the result; that of `x` when left out.

    Returns:
        A tensor of the shape of `x`; NaN in rows that hold NaN, or nothing but -inf.

    Raises:
        DTypeError: not floating point.
        IndexOutOfRangeError: there is no such dimension.
    """
    dtype = dtype or x.dtype
    check_float("softmax", x)
    check_float_result("softmax", dtype)
    dim = resolve_dim("softmax", dim, x.ndim)
    last = x.ndim - 1
    if dim != last:
        return softmax(x.transpose(dim, last), last, dtype).transpose(dim, last)
    result = Tensor._empty(x.shape, kernel_dtype(dtype))
    columns = x.shape[-1]
    native.softmax(as_rows(kernel_operand(x), columns), as_rows(result, columns))
    return result.to(dtype)


def argmax(x: Tensor, dim: int = -1) -> Tensor:
    """Find where the greatest element is.

    out[...] = the first i for which x[..., i, ...] is greatest; NaN counts as the greatest

    Args:
        x: a real tensor.
        dim: the dimension, negative ones counted from the end; at least one element long.

    Returns:
        An int32 tensor without the dimension.

    Raises:
        DTypeError: complex.
        ShapeError: the dimension has no elements.
        IndexOutOfRangeError: there is no such dimension.
    """
    if x.dtype.kind == "complex":
        raise DTypeError(f"[argmax] dtype must be real: {x.dtype} (shape {list(x.shape)})")
    dim = resolve_dim("argmax", dim, x.ndim)
    if x.shape[dim] == 0:
        raise ShapeError(f"[argmax] shape[{dim}] must be >= 1: 0 (shape {list(x.shape)})")
    result = Tensor._empty((*x.shape[:dim], *x.shape[dim + 1 :]), int32)
    if x.dtype.is_float and dim == x.ndim - 1:
        native.argmax(as_rows(kernel_operand(x), x.shape[-1]), result.reshape(result.size))
    else:
        values = float32_array(x) if x.dtype.is_float else x.numpy()
        result.numpy()[...] = values.argmax(axis=dim)
    return result


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: DType | None = None) -> Tensor:
    """Scale rows to a root mean square of 1, and then each column by its weight.

    out = x / sqrt(mean(x * x) + eps) * weight, along the last dimension, in float32, rounded once

    Args:
        x: a real floating-point tensor [..., D].
        weight: a real floating-point tensor [D].
        eps: keeps rows of zeros from a division by zero.
        dtype: of the result; that of `x` when left out.

    Returns:
        A tensor of the shape of `x`.

    Raises:
        DTypeError: not floating point.
        ShapeError: `weight.shape` is not (D,).

    Source: Zhang, Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    dtype = dtype or x._dtype
    check_float("rms_norm", x, weight)
    check_float_result("rms_norm", dtype)
    check_ndim_at_least("rms_norm", x, 1)
    columns = x._shape[-1]
    if weight._shape != (columns,):
        raise ShapeError(
            f"[rms_norm] weight.shape must equal (x.shape[-1],): {list(weight.shape)} != "
            f"[{columns}] (x {list(x.shape)})"
        )
    result = Tensor._empty(x._shape, kernel_dtype(dtype))
    native.rms_norm(
        as_rows(kernel_operand(x), columns), weight.contiguous(), eps, as_rows(result, columns)
    )
    return result if result._dtype is dtype else result.to(dtype)
