"""Ops that move or convert elements without calculating with them."""

from collections.abc import Sequence

import numpy as np

from .. import native
from ..dtype import DType, complex64
from ..errors import DTypeError, ShapeError, TensorError
from ..layout import resolve_dim
from ..tensor import Tensor


def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors one after the other along a dimension.

    Args:
        tensors: at least one; one dtype, and equal sizes in every other dimension.
        dim: the dimension, negative ones counted from the end.

    Returns:
        A new tensor whose size in `dim` is the sum of theirs.

    Raises:
        ShapeError: no tensors, or sizes that differ in another dimension.
        DTypeError: dtypes that differ.
        IndexOutOfRangeError: there is no such dimension.
    """
    if not tensors:
        raise ShapeError("[concatenate] number of tensors must be >= 1: 0")
    first = tensors[0]
    dim = resolve_dim("concatenate", dim, first.ndim)
    total = 0
    for i, x in enumerate(tensors):
        if x.dtype is not first.dtype:
            raise DTypeError(
                f"[concatenate] dtypes must be equal: {first.dtype} != {x.dtype} "
                f"(tensors 0 and {i})"
            )
        if x.ndim != first.ndim or _without(x, dim) != _without(first, dim):
            raise ShapeError(
                f"[concatenate] shapes must be equal outside of dim {dim}: "
                f"{list(first.shape)} != {list(x.shape)} (tensors 0 and {i})"
            )
        total += x.shape[dim]
    result = Tensor._empty((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)
    np.concatenate([x.bits() for x in tensors], axis=dim, out=result.bits())
    return result


def _without(x: Tensor, dim: int) -> tuple[int, ...]:
    return x.shape[:dim] + x.shape[dim + 1 :]


def convert(x: Tensor, dtype: DType) -> Tensor:
    """Convert elements to another dtype; the op behind `Tensor.to`.

    Floats round to nearest, ties to even, and NaN stays NaN. Integers become bfloat16 or float16 by
    way of float32. Floats become integers by dropping the fraction.

    Args:
        x: a tensor of any dtype.
        dtype: of the result.

    Returns:
        A new contiguous tensor of the shape of `x`.

    Raises:
        DTypeError: from complex64 to a real dtype (`view_as_real` shows both parts).
        TensorError: a value that the integer dtype cannot hold.
    """
    result = Tensor._empty(x.shape, dtype, x.name)
    if x.dtype.is_float and dtype.is_float:
        native.convert(x.contiguous(), result)
    elif dtype.kind == "int":
        _to_integers(x, result)
    elif x.dtype is complex64 and dtype is not complex64:
        raise DTypeError(f"[to] a complex dtype must stay complex: {x.dtype} to {dtype}")
    else:
        with np.errstate(over="ignore"):
            result.numpy()[...] = x.numpy().astype(np.float32)
    return result


def _to_integers(x: Tensor, result: Tensor) -> None:
    if x.dtype is complex64:
        raise DTypeError(f"[to] a complex dtype must stay complex: {x.dtype} to {result.dtype}")
    # float64 holds every value of every real dtype exactly.
    values = np.trunc(x.numpy().astype(np.float64))
    limits = np.iinfo(result.dtype.numpy_dtype)
    held = (values >= limits.min) & (values <= limits.max)
    if not held.all():
        raise TensorError(
            f"[to] values must be in [{limits.min}, {limits.max}] for {result.dtype}: "
            f"{float(values[~held].flat[0])}"
        )
    result.numpy()[...] = values.astype(result.dtype.numpy_dtype)
