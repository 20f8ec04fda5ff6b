"""Ops that operate along dimensions: sums, means, extrema, softmax and norms.

Negative dimensions count from the end. `allclose` operates along all dimensions.
"""

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import kernels
from ..checks import (
    KERNEL_DTYPES,
    check_float,
    check_indices,
    check_kind,
    check_ndim_at_least,
    checked_flag,
    checked_pair,
    comparable,
    describe_operands,
    float_dtype,
    kernel_operand,
    resolve_dims,
    rounded,
)
from ..dtype import DType, checked_number, dtype_named, float32, int32, int64
from ..errors import DTypeError, ShapeError, TensorError
from ..kernels import lib
from ..layout import checked_shape, resolve_dim
from ..op import op
from ..tensor import Array, Tensor, allocate

_MOST_COLUMNS = 2**31 - 1


@op
def sum(  # noqa: A001 (the field's word)
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: DType | str | None = None,
) -> Tensor:
    """Return the sum of all elements, or the sums along one or more dimensions.

    out[..., ...] = sum_i x[..., i, ...], accumulated in float64, rounded once

    Args:
        x: A tensor of any dtype.
        dim: One dimension or a sequence of dimensions. The default is all dimensions.
        keepdim: Whether to keep the summed dimensions, with size 1.
        dtype: The dtype of the result. The default is int64 for integers and bools, and
            the dtype of `x` otherwise.

    Returns:
        A tensor without the summed dimensions. Integer sums wrap around on overflow.
    """
    dims = resolve_dims("sum", dim, len(x._shape))
    kept = checked_flag("sum", "keepdim", keepdim)
    return _sum_wide("sum", lambda v: v.sum(dims, keepdims=kept), x, dtype)


@op
def mean(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """Return the mean of a real floating-point tensor. See `sum` for the arguments.

    out[..., ...] = sum_i x[..., i, ...] / n, accumulated in float64, rounded once

    The mean of an empty tensor is NaN.
    """
    check_float("mean", x)
    dims = resolve_dims("mean", dim, x.ndim)
    kept = checked_flag("mean", "keepdim", keepdim)
    count = np.float64(math.prod(x._shape[d] for d in dims))
    return _sum_wide("mean", lambda v: v.sum(dims, keepdims=kept) / count, x, None)


@op
def any(  # noqa: A001 (the field's word)
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """Return whether any element is not zero: a bool tensor. See `sum` for the arguments.

    NaN is not zero. The result is False if there are no elements.
    """
    return _truth("any", np.any, x, dim, keepdim)


@op
def all(  # noqa: A001 (the field's word)
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """Return whether all elements are not zero: a bool tensor. See `any`.

    The result is True if there are no elements.
    """
    return _truth("all", np.all, x, dim, keepdim)


@op
def norm(
    x: Tensor,
    p: float = 2.0,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Return the vector norm of a real floating-point tensor. See `sum` for `dim`.

    out = (sum_i abs(x[i]) ** p) ** (1 / p), in float64, rounded once; for p = inf, the
    greatest magnitude, and for p = 0, the number of elements that are not zero

    Raises:
        DTypeError: If the tensor is not floating point, or if `p` is not a number.
    """
    check_float("norm", x)
    order = checked_number("norm", p, float32)
    dims = resolve_dims("norm", dim, x.ndim)
    kept = checked_flag("norm", "keepdim", keepdim)

    def of(values: Array) -> Any:
        size = np.abs(values)
        if math.isinf(order):
            extreme = np.max if order > 0 else np.min
            return extreme(
                size, axis=dims, keepdims=kept, initial=0.0 if order > 0 else np.inf
            )
        if order == 0:
            return (size != 0).sum(dims, keepdims=kept, dtype=np.float64)
        if order == 2:
            return np.sqrt((size * size).sum(dims, keepdims=kept))
        return (size**order).sum(dims, keepdims=kept) ** (1 / order)

    return _sum_wide("norm", of, x, None)


@op
def var(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: int = 1,
    keepdim: bool = False,
) -> Tensor:
    """Return the variance of a real floating-point tensor. See `sum` for `dim`.

    out = sum_i (x[i] - mean(x)) ** 2 / (n - correction), in float64, rounded once

    Args:
        correction: 1 for the variance of a sample, 0 for the mean squared difference.
    """
    return _variance("var", x, (dim, correction, keepdim), lambda v: v)


@op
def std(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: int = 1,
    keepdim: bool = False,
) -> Tensor:
    """Return the standard deviation, the square root of the variance. See `var`."""
    return _variance("std", x, (dim, correction, keepdim), np.sqrt)


@op
def cumsum(x: Tensor, dim: int, dtype: DType | str | None = None) -> Tensor:
    """Return the cumulative sum along a dimension. See `sum` for the dtypes.

    out[..., i, ...] = sum_{j <= i} x[..., j, ...], accumulated in float64, rounded once
    """
    dim = resolve_dim("cumsum", dim, len(x._shape))
    return _sum_wide("cumsum", lambda v: v.cumsum(dim), x, dtype)


@op
def max(  # noqa: A001 (the field's word)
    x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the maximum of a real tensor. NaN counts as the greatest value.

    Returns:
        If `dim` is None, a tensor without dimensions. Otherwise, the maxima along `dim`
        and their int64 indices. Among equal elements, the first index is returned.
    """
    return _extreme("max", np.argmax, x, dim, keepdim)


@op
def min(  # noqa: A001 (the field's word)
    x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the minimum of a real tensor, or NaN if it contains NaN. See `max`."""
    return _extreme("min", np.argmin, x, dim, keepdim)


@op
def argmax(x: Tensor, dim: int | None = None) -> Tensor:
    """Return the index of the maximum.

    out[...] = the first i at which x[..., i, ...] is greatest; NaN counts as the greatest
    value

    Args:
        x: A real tensor.
        dim: The dimension, with at least one element. Negative dimensions count from the
            end. By default, the index refers to all elements in row-major order.

    Returns:
        An int32 tensor without the dimension `dim`.

    Raises:
        DTypeError: If the tensor is complex.
        ShapeError: If the dimension has no elements.
        IndexOutOfRangeError: If the dimension does not exist.
    """
    check_kind("argmax", x, "float", "int", "bool")
    if dim is None:
        x = x.reshape(x.size)
        dim = 0
    dim = resolve_dim("argmax", dim, x.ndim)
    if x.shape[dim] == 0:
        raise ShapeError(f"[argmax] shape[{dim}] must be >= 1: 0 (shape {list(x.shape)})")
    result = allocate((*x.shape[:dim], *x.shape[dim + 1 :]), int32)
    if x.dtype.is_float and dim == x.ndim - 1:
        operand = kernel_operand("argmax", x)
        columns = x._shape[-1]
        if columns > _MOST_COLUMNS:
            raise ShapeError(
                f"[argmax] x.shape[-1] must be <= {_MOST_COLUMNS}: {columns}"
            )
        if result._size:
            lib.argmax(
                kernels.pointer(result._pointer),
                operand._pointer,
                result._size,
                columns,
                operand._dtype.code,
                kernels.threads,
            )
    else:
        result.numpy()[...] = comparable(x).argmax(axis=dim)
    return result


@op
def allclose(
    a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether all elements of two tensors are equal within a tolerance.

    |a - b| <= atol + rtol * |b|, computed in float64

    The tensors must have the same dtype and shapes that broadcast. An infinity is close
    only to itself. NaN values are close to each other only if `equal_nan` is set.
    """
    checked_pair("allclose", a, b)
    wide = np.complex128 if a._dtype.kind == "complex" else np.float64
    rtol, atol = (checked_number("allclose", bound, float32) for bound in (rtol, atol))
    is_nan_close = checked_flag("allclose", "equal_nan", equal_nan)
    with np.errstate(all="ignore"):
        left = a.numpy().astype(wide)
        right = b.numpy().astype(wide)
        return bool(np.allclose(left, right, rtol, atol, is_nan_close))


@op
def softmax(
    x: Tensor,
    dim: int = -1,
    dtype: DType | str | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Convert scores to weights that sum to 1.

    out[i] = exp(x[i] - max(x)) * (1 / sum_j exp(x[j] - max(x))), along `dim`, in float32

    A sink is a score without an element: the maximum and the sum include it, so the
    weights sum to less than 1. The exponential of element i is added to lane i mod 16 of
    the sum, in the order of the elements. That of the sink is the first addend of lane 0.

    Args:
        x: A real floating-point tensor. The weight of -inf is 0.
        dim: The dimension. Negative dimensions count from the end.
        dtype: The dtype of the result. The default is the dtype of `x`.
        sinks: A float32 tensor [H] for scores `x` [H, T, S] in float32: the sink of each
            row of x[i] is sinks[i]. `dim` must then be the last dimension.

    Returns:
        A tensor with the shape of `x`. Rows that contain NaN, or only -inf, become NaN.

    Raises:
        DTypeError: If the tensor is not floating point, or if a tensor is not float32
            with sinks.
        IndexOutOfRangeError: If the dimension does not exist.
        ShapeError: If the sinks do not fit the scores and the dimension.
    """
    operand = kernel_operand("softmax", x)
    dtype = x._dtype if dtype is None else float_dtype("softmax", dtype)
    dim = resolve_dim("softmax", dim, x.ndim)
    last = x.ndim - 1
    if sinks is not None:
        _check_sinks(x, dim, sinks)
        return _softmax_with_sinks(x, sinks).to(dtype)
    if dim != last:
        return softmax(x.transpose(dim, last), last, dtype).transpose(dim, last)
    result = allocate(x._shape, dtype if dtype in KERNEL_DTYPES else float32)
    if result._size:
        lib.softmax(
            result._pointer,
            operand._pointer,
            math.prod(x._shape[:-1]),
            x._shape[-1],
            operand._dtype.code,
            result._dtype.code,
            kernels.threads,
        )
    return result if result._dtype is dtype else result.to(dtype)


def _check_sinks(x: Tensor, dim: int, sinks: Tensor) -> None:
    """Check that softmax over a dimension of x can have one sink for each x[i]."""
    for label, tensor in (("x", x), ("sinks", sinks)):
        if tensor._dtype is not float32:
            raise DTypeError(
                f"[softmax] {label}.dtype must equal float32: {tensor.dtype}"
            )
    if x.ndim != 3 or dim != 2 or sinks._shape != x._shape[:1]:
        raise ShapeError(
            "[softmax] sinks.shape must equal [x.shape[0]] for x [H, T, S] and dim 2: "
            f"{list(sinks.shape)} (x {list(x.shape)}, dim {dim})"
        )


def _softmax_with_sinks(x: Tensor, sinks: Tensor) -> Tensor:
    """Return the softmax of scores x [H, T, S] and sinks [H], without the sinks.

    Each sink is in the first of 16 columns before the scores, so that each score keeps
    its lane in the sum.
    """
    H, T, S = x._shape
    lanes: int = lib.LANES
    scores = allocate((H, T, lanes + S), float32)
    columns = scores.numpy()
    columns[:, :, 0] = sinks.numpy()[:, None]
    columns[:, :, 1:lanes] = -math.inf
    columns[:, :, lanes:] = x.numpy()
    weights = allocate((H, T, S), float32)
    weights.numpy()[...] = softmax(scores).numpy()[:, :, lanes:]
    return weights


@op
def log_softmax(x: Tensor, dim: int = -1, dtype: DType | str | None = None) -> Tensor:
    """Return the logarithm of the softmax. See `softmax` for the arguments.

    out[i] = x[i] - max(x) - log(sum_j exp(x[j] - max(x))), along `dim`, in float64,
    rounded through float32
    """
    check_float("log_softmax", x)
    target = x._dtype if dtype is None else float_dtype("log_softmax", dtype)
    dim = resolve_dim("log_softmax", dim, x.ndim)
    with np.errstate(all="ignore"):
        values = x.numpy().astype(np.float64)
        values = values - values.max(dim, keepdims=True, initial=-np.inf)
        return rounded(values - np.log(np.exp(values).sum(dim, keepdims=True)), target)


@op
def cross_entropy(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return how improbable the target classes are, in nats.

    out[n] = -log_softmax(logits[n])[target[n]], in float64, rounded through float32

    Args:
        logits: A floating-point tensor [N, C], or [C] for one prediction.
        target: An int32 or int64 tensor [N], or [] for one prediction, with values
            `0 <= class < C`.
        reduction: "mean" or "sum" over the predictions, or "none".

    Returns:
        A tensor without dimensions, or [N] with "none", with the dtype of `logits`.

    Raises:
        ShapeError: If `logits` does not have one more dimension than `target`.
        DTypeError: If the logits are not floating point, or the targets not integers.
        IndexOutOfRangeError: If a target is not a class.
        TensorError: If `reduction` is unknown.
    """
    check_float("cross_entropy", logits)
    if target._dtype not in (int32, int64):
        raise DTypeError(
            f"[cross_entropy] target.dtype must be int32 or int64: {target.dtype}"
        )
    if logits.ndim not in (1, 2) or logits._shape[:-1] != target._shape:
        both = describe_operands(("logits", logits), ("target", target))
        raise ShapeError(
            f"[cross_entropy] logits.shape must equal [*target.shape, C]: {both}"
        )
    if reduction not in ("mean", "sum", "none"):
        text = f"reduction must be 'mean', 'sum' or 'none': {reduction!r:.80}"
        raise TensorError(f"[cross_entropy] {text}")
    classes = target.numpy()
    check_indices(
        "cross_entropy", "target", classes, logits._shape[-1], ("logits", logits)
    )
    with np.errstate(all="ignore"):
        values = logits.numpy().astype(np.float64)
        values = values - values.max(-1, keepdims=True, initial=-np.inf)
        picked = np.take_along_axis(values, classes[..., None], -1)[..., 0]
        losses = np.log(np.exp(values).sum(-1)) - picked
        if reduction == "none":
            return rounded(losses, logits._dtype)
        total = losses.sum()
        return rounded(
            total / np.float64(losses.size) if reduction == "mean" else total,
            logits._dtype,
        )


@op
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, dtype: DType | str | None = None
) -> Tensor:
    """Scale each row to a root mean square of 1, and then each column by its weight.

    out = x / sqrt(mean(x * x) + eps) * weight, along the last dimension, in float32,
    rounded once

    Args:
        x: A real floating-point tensor [..., D].
        weight: A real floating-point tensor [D].
        eps: A small number that prevents division by zero for rows of zeros.
        dtype: The dtype of the result. The default is the dtype of `x`.

    Returns:
        A tensor with the shape of `x`.

    Raises:
        DTypeError: If an argument is not floating point.
        ShapeError: If `weight.shape` is not (D,).

    Source: Zhang, Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    operand = kernel_operand("rms_norm", x)
    shape = x._shape
    check_float("rms_norm", weight)
    eps = eps if type(eps) is float else checked_number("rms_norm", eps, float32)
    if not shape or weight._shape != shape[-1:]:
        check_ndim_at_least("rms_norm", x, 1)
        both = describe_operands(("x", x), ("weight", weight))
        shapes = f"{list(weight.shape)} != [{shape[-1]}] ({both})"
        raise ShapeError(f"[rms_norm] weight.shape must equal (x.shape[-1],): {shapes}")
    dtype = x._dtype if dtype is None else float_dtype("rms_norm", dtype)
    factors = weight if weight._pointer is not None else weight.contiguous()
    result = allocate(shape, dtype if dtype in KERNEL_DTYPES else float32)
    if result._size:
        lib.rms_norm(
            result._pointer,
            operand._pointer,
            factors._pointer,
            result._size // shape[-1],
            shape[-1],
            eps,
            operand._dtype.code,
            factors._dtype.code,
            result._dtype.code,
            kernels.threads,
        )
    return result if result._dtype is dtype else result.to(dtype)


@op
def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize the last dimensions to a mean of 0 and a variance of 1.

    out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, in float64, rounded
    through float32

    Args:
        x: A real floating-point tensor.
        normalized_shape: The sizes of the dimensions to normalize.
        weight: A real floating-point tensor with this shape. The default is ones.
        bias: A real floating-point tensor with this shape. The default is zeros.
        eps: A small number that prevents division by zero if all elements are equal.

    Source: Ba, Kiros, Hinton, Layer Normalization, 2016.
    """
    check_float("layer_norm", x)
    sizes = checked_shape("layer_norm", normalized_shape)
    for label, other in (("weight", weight), ("bias", bias)):
        if other is not None:
            check_float("layer_norm", other)
            if other._shape != sizes:
                shapes = f"{list(other.shape)} != {list(sizes)}"
                raise ShapeError(
                    f"[layer_norm] {label}.shape must equal normalized_shape: {shapes}"
                )
    if not sizes or x._shape[-len(sizes) :] != sizes:
        raise ShapeError(
            f"[layer_norm] x.shape must end in normalized_shape: {list(x.shape)}, "
            f"{list(sizes)}"
        )
    dims = tuple(range(-len(sizes), 0))
    eps = checked_number("layer_norm", eps, float32)
    if not x._size:
        return allocate(x._shape, x._dtype)
    with np.errstate(all="ignore"):
        values = x.numpy().astype(np.float64)
        values = values - values.mean(dims, keepdims=True)
        values /= np.sqrt((values * values).mean(dims, keepdims=True) + eps)
        values *= 1.0 if weight is None else weight.numpy().astype(np.float64)
        values += 0.0 if bias is None else bias.numpy().astype(np.float64)
        return rounded(values, x._dtype)


def _sum_wide(
    op: str, function: Callable[[Array], Any], x: Tensor, dtype: DType | str | None
) -> Tensor:
    """Apply a summing function to the elements, in the widest dtype of their kind."""
    if dtype is None:
        target = int64 if x._dtype.kind in ("int", "bool") else x._dtype
    else:
        target = dtype_named(op, dtype)
        x = x if target.kind == x._dtype.kind else x.to(target)
    wide = {"float": np.float64, "complex": np.complex128}.get(x._dtype.kind, np.int64)
    with np.errstate(all="ignore"):
        values = np.asarray(function(x.numpy().astype(wide)))
        if wide is np.float64:
            return rounded(values, target)
        result = Tensor.from_numpy(
            values.astype(np.complex64) if wide is np.complex128 else values
        )
    return result.to(target)


def _truth(
    op: str,
    function: Callable[..., Any],
    x: Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
) -> Tensor:
    dims = resolve_dims(op, dim, x.ndim)
    kept = checked_flag(op, "keepdim", keepdim)
    values = comparable(x) != 0
    return Tensor.from_numpy(np.asarray(function(values, axis=dims, keepdims=kept)))


def _variance(
    op: str,
    x: Tensor,
    options: tuple[int | Sequence[int] | None, int, bool],
    function: Callable[[Array], Any],
) -> Tensor:
    check_float(op, x)
    dim, correction, keepdim = options
    dims = resolve_dims(op, dim, x.ndim)
    kept = checked_flag(op, "keepdim", keepdim)
    less = checked_number(op, correction, float32)
    count = np.float64(builtins.max(math.prod(x._shape[d] for d in dims) - less, 0.0))

    def of(values: Array) -> Any:
        size = np.float64(math.prod(x._shape[d] for d in dims))
        means = values.sum(dims, keepdims=True) / size
        differences = values - means
        return function((differences * differences).sum(dims, keepdims=kept) / count)

    return _sum_wide(op, of, x, None)


def _extreme(
    op: str, function: Callable[..., Any], x: Tensor, dim: int | None, keepdim: bool
) -> Tensor | tuple[Tensor, Tensor]:
    check_kind(op, x, "float", "int", "bool")
    source = x if dim is not None else x.reshape(x._size)
    at = 0 if dim is None else resolve_dim(op, dim, x.ndim)
    if source._shape[at] == 0:
        raise ShapeError(
            f"[{op}] number of elements must be >= 1: 0 (shape {list(x.shape)})"
        )
    places = np.expand_dims(function(comparable(source), at), at)
    picked = np.take_along_axis(source.bits(), places, at)
    shape = (1,) * x.ndim if dim is None else picked.shape
    if not checked_flag(op, "keepdim", keepdim):
        shape = () if dim is None else (*shape[:at], *shape[at + 1 :])
    values = allocate(shape, x._dtype)
    indices = allocate(shape, int64)
    values.bits()[...] = picked.reshape(shape)
    indices.numpy()[...] = places.reshape(shape)
    return values if dim is None else (values, indices)
