"""Ops that select elements by index, sort order, condition, or position in a matrix."""

import math
from typing import Any

import numpy as np

from .. import kernels
from ..checks import (
    check_indices,
    check_kind,
    check_ndim_at_least,
    checked_flag,
    checked_pair,
    comparable,
    float_dtype,
)
from ..dtype import DType, bfloat16, bool_, checked_scalar, int32, int64
from ..errors import DTypeError, ShapeError
from ..layout import broadcast_shapes, checked_ints, resolve_dim
from ..op import op
from ..quantized import QuantizedTensor, Weight, copy_rows
from ..tensor import Array, Tensor, allocate
from .creation import tensor


@op
def get_rows(table: Weight, ids: Tensor, dtype: DType | str | None = None) -> Tensor:
    """Select rows of a table, as in an embedding lookup.

    out[t, ...] = table[ids[t], ...]

    Args:
        table: A tensor [V, ...] of any dtype, or a block-quantized tensor [V, D].
            Embeddings have the shape [V, D].
        ids: An int32 tensor with values `0 <= id < V`. Tokens have the shape [T].
        dtype: The dtype of the result. The default is the table's dtype, or bfloat16 for
            a block-quantized table, whose elements are rounded once.

    Returns:
        A tensor [T, ...].

    Raises:
        DTypeError: If the ids are not int32, or if a block-quantized table cannot be
            converted to the dtype.
        ShapeError: If the table has no dimensions, or if a block-quantized table does not
            have two.
        IndexOutOfRangeError: If an id is out of range.
    """
    check_ndim_at_least("get_rows", table, 1)
    if ids._dtype is not int32:
        raise DTypeError(
            f"[get_rows] ids.dtype must equal int32: {ids.dtype} (ids {list(ids.shape)})"
        )
    row = table._shape[1:]
    name = ""
    if isinstance(table, QuantizedTensor):
        if len(row) != 1:
            actual = f"{table.ndim} (shape {list(table.shape)})"
            raise ShapeError(
                f"[get_rows] ndim of a block-quantized table must equal 2: {actual}"
            )
        stored = dtype = bfloat16 if dtype is None else float_dtype("get_rows", dtype)
        name = table._name
        weight = table._weight
    else:
        stored = table._dtype
        table = table.contiguous()
        weight = (
            kernels.weight((table._pointer,), stored.code) if stored.is_float else None
        )
    result = allocate((*ids._shape, *row), stored, name)
    ids = ids.contiguous()
    at = kernels.pointer(ids._pointer)
    V = table._shape[0]
    D = math.prod(row)
    copied = weight is not None and copy_rows(result, weight, at, ids._size, V, D)
    if not copied or not D:
        numbers = ids.numpy()
        check_indices("get_rows", "ids", numbers, V, ("table", table), ("ids", ids))
        if isinstance(table, Tensor):
            result.bits()[...] = table.bits()[numbers]
    return result if dtype is None else result.to(dtype)


@op
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sort a real tensor along a dimension, in ascending or descending order.

    The sort is stable, and NaN counts as the greatest value.

    Returns:
        The sorted elements and their int64 indices in `x`, both with the shape of `x`.
    """
    return _sort("sort", x, dim, checked_flag("sort", "descending", descending))


@op
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements along a dimension, in sorted order.

    Returns:
        The elements and their int64 indices in `x`. Among equal elements, those with the
        lowest indices are selected. NaN counts as the greatest value.
    """
    values, indices = _sort("topk", x, dim, checked_flag("topk", "largest", largest))
    dim = resolve_dim("topk", dim, x.ndim)
    k = checked_ints("topk", "k", (k,))[0]
    if not 0 <= k <= x._shape[dim]:
        raise ShapeError(
            f"[topk] 0 <= k <= shape[{dim}] must hold: {k} (shape {list(x.shape)})"
        )
    first = (*(slice(None),) * dim, slice(0, k))
    return values[first].contiguous(), indices[first].contiguous()


@op
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Select elements by index along a dimension.

    out[i, j, k] = x[i, index[i, j, k], k], if `x` has three dimensions and `dim` is 1

    `index` is an int32 or int64 tensor with as many dimensions as `x`. In all dimensions
    except `dim`, its sizes must not exceed those of `x`. The result has the shape of
    `index`.
    """
    dim = resolve_dim("gather", dim, len(x._shape))
    if index._dtype not in (int32, int64):
        raise DTypeError(f"[gather] index.dtype must be int32 or int64: {index.dtype}")
    pairs = zip(index._shape, x._shape, strict=False)
    if index.ndim != x.ndim or any(n > m for d, (n, m) in enumerate(pairs) if d != dim):
        shapes = f"{list(index.shape)} > {list(x.shape)}"
        raise ShapeError(
            f"[gather] index.shape must be <= x.shape outside of dim {dim}: {shapes}"
        )
    result = allocate(index._shape, x._dtype)
    if result._size:
        ids = index.numpy()
        size = x._shape[dim]
        check_indices("gather", f"index along dim {dim}", ids, size, ("x", x))
        part = tuple(
            slice(None) if d == dim else slice(n) for d, n in enumerate(index._shape)
        )
        result.bits()[...] = np.take_along_axis(x.bits()[part], ids, dim)
    return result


def _sort(op: str, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    check_kind(op, x, "float", "int", "bool")
    dim = resolve_dim(op, dim, x.ndim)
    keys = comparable(x)
    if descending:
        # The flipped array is sorted in ascending order, and the result is flipped back,
        # so equal elements keep their order.
        backwards = np.argsort(np.flip(keys, dim), dim, kind="stable")
        order = keys.shape[dim] - 1 - np.flip(backwards, dim)
    else:
        order = np.argsort(keys, dim, kind="stable")
    values = allocate(x._shape, x._dtype)
    indices = allocate(x._shape, int64)
    indices.numpy()[...] = order
    values.bits()[...] = np.take_along_axis(x.bits(), order, dim)
    return values, indices


@op
def where(condition: Tensor, a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Select elements from one of two operands, depending on a condition.

    out = a if condition else b, element by element

    The condition is a bool tensor. `a` and `b` are tensors with the same dtype, or
    numbers. All three operands broadcast. If `a` and `b` are both numbers, the result has
    the dtype of `ml.tensor([a, b])`.
    """
    if condition._dtype is not bool_:
        actual = f"{condition.dtype} (shape {list(condition.shape)})"
        raise DTypeError(f"[where] condition.dtype must equal bool: {actual}")
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        dtype, shape = checked_pair("where", a, b)
    else:
        dtype = tensor([a, b]).dtype
        shape = ()
    result = allocate(broadcast_shapes("where", condition._shape, shape), dtype)
    result.bits()[...] = np.where(
        condition.numpy(), *(_bits_of(x, dtype) for x in (a, b))
    )
    return result


def _bits_of(x: Any, dtype: DType) -> Array:
    if isinstance(x, Tensor):
        return x.bits()
    return np.asarray(checked_scalar("where", x, dtype)).view(dtype.bits_dtype)


@op
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return the upper triangle of a matrix, with all other elements set to zero.

    out[..., i, j] = x[..., i, j] if j - i >= diagonal else 0

    Args:
        x: A tensor [..., rows, columns] of any dtype.
        diagonal: The lowest diagonal to keep. 0 is the main diagonal, 1 the one above it.

    Returns:
        A tensor with the shape and dtype of `x`.
    """
    return _triangle("triu", x, diagonal, upper=True)


@op
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return the lower triangle of a matrix, with all other elements set to zero.

    out[..., i, j] = x[..., i, j] if j - i <= diagonal else 0

    See `triu` for the arguments; `diagonal` is the highest diagonal to keep.
    """
    return _triangle("tril", x, diagonal, upper=False)


def _triangle(op: str, x: Tensor, diagonal: int, *, upper: bool) -> Tensor:
    check_ndim_at_least(op, x, 2)
    diagonal = checked_ints(op, "diagonal", (diagonal,))[0]
    rows, columns = x._shape[-2:]
    above = np.arange(columns) - np.arange(rows)[:, None]
    result = allocate(x._shape, x._dtype)
    kept = above >= diagonal if upper else above <= diagonal
    result.bits()[...] = np.where(kept, x.bits(), 0)
    return result
