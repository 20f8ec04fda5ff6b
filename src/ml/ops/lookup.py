"""Ops that select elements by index, sort order, condition, or position in a matrix."""

import math
from typing import Any

import numpy as np

from .. import kernels
from ..adapted import AdaptedRows, active, adapted_rows
from ..checks import (
    check_indices,
    check_kind,
    check_ndim_at_least,
    check_same_dtype,
    checked_flag,
    checked_pair,
    comparable,
    float_dtype,
)
from ..dtype import DType, bfloat16, bool_, checked_scalar, float32, int32, int64
from ..errors import DTypeError, IndexOutOfRangeError, ShapeError
from ..layout import broadcast_shapes, checked_ints, resolve_dim
from ..op import op, op_that_changes
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
        ids: An int32 or int64 tensor with values `0 <= id < V`. Tokens have the shape
            [T].
        dtype: The dtype of the result. The default is the table's dtype, or bfloat16 for
            a block-quantized table, whose elements are rounded once.

    Returns:
        A tensor [T, ...].

    Raises:
        DTypeError: If the ids are not int32 or int64, or if a block-quantized table
            cannot be converted to the dtype.
        ShapeError: If the table has no dimensions, or if a block-quantized table does not
            have two.
        IndexOutOfRangeError: If an id is out of range.
    """
    if active.rows is not None and table._name in active.rows.lookups:
        return _adapted_rows(active.rows, table, ids, dtype)
    check_ndim_at_least("get_rows", table, 1)
    if ids._dtype is int64:
        both = ("table", table), ("ids", ids)
        check_indices("get_rows", "ids", ids.numpy(), table._shape[0], *both)
        ids = ids.to(int32)
    if ids._dtype is not int32:
        text = f"{ids.dtype} (ids {list(ids.shape)})"
        raise DTypeError(f"[get_rows] ids.dtype must be int32 or int64: {text}")
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


def _adapted_rows(
    rows: AdaptedRows, table: Weight, ids: Tensor, dtype: DType | str | None
) -> Tensor:
    """Select rows, and add the changes of the adapters that are active.

    out[t] = table[ids[t]] + sum over adapters of scale * A[ids[t]] B^T, added in float32,
    rounded once
    """
    from .low_rank import add_change  # only a pass with adapters needs it

    name = table._name
    with adapted_rows(()):  # the look-ups below have no changes
        result = get_rows(table, ids, float32)
        numbers = ids.numpy()
        for each in rows.rounds(ids._shape[0] if ids._shape else 0):
            places = np.arange(numbers.size)[each.rows]
            for part in each.parts:
                pair = part.adapter.lookups.get(name)
                if pair is not None:
                    own = places[part.start : part.stop]
                    low = get_rows(pair.a, Tensor.from_numpy(numbers[own]), float32)
                    add_change(result, own, low, pair, part.factor)
    if dtype is None:
        dtype = bfloat16 if isinstance(table, QuantizedTensor) else table._dtype
    return result.to(dtype)


@op
def getitem(x: Tensor, key: Any) -> Tensor:
    """Select elements by lists, or tensors of integers or bools: `x[key]`.

    x[ids] = the rows `ids` of x; x[mask] = the elements where the mask is True

    The rules are PyTorch's. Integers, slices, Ellipsis and None are applied first. Each
    list or tensor of integers then selects indices of one dimension, and each tensor of
    bools indices of as many dimensions as it has. They broadcast with each other. Their
    common dimensions replace those that they select from, or are the first ones if a
    slice is between them.

    Args:
        x: A tensor of any dtype.
        key: One index, or a tuple of indices. Negative integers count from the end.

    Returns:
        A new tensor with the dtype of `x`.

    Raises:
        IndexOutOfRangeError: If an index is out of range, or if there are too many.
        ShapeError: If a mask does not have the sizes of its dimensions, or if indices do
            not broadcast.
        DTypeError: If a tensor of another dtype is an index.
        TensorError: If an index has another type.
    """
    view, arrays = _split_key(x, key)
    picked = view.bits()[arrays]
    result = allocate(picked.shape, x._dtype)
    result.bits()[...] = picked
    return result


@op_that_changes(lambda arguments: (arguments["x"],))
def setitem(x: Tensor, key: Any, value: Tensor | complex) -> None:
    """Assign a number, or a tensor of the same dtype that broadcasts: `x[key] = value`.

    See `getitem` for the indices and their exceptions.

    Raises:
        ShapeError: If the value does not broadcast to the selected elements.
        DTypeError: If the value has another dtype.
        TensorError: If the storage is read-only.
    """
    view, arrays = _split_key(x, key)
    target = view.bits()
    target[arrays] = x.assignable_bits("setitem", value, target[arrays].shape)


def _split_key(x: Tensor, key: Any) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the view that the plain parts of an index select, and an index for it.

    The second index consists of slices, and of arrays whose elements are in range.
    """
    parts = [
        _as_index(part) if isinstance(part, list | Tensor) else part
        for part in (key if isinstance(key, tuple) else (key,))
    ]
    used = [
        max(part.ndim, 1) if isinstance(part, Tensor) and part._dtype is bool_ else 1
        for part in parts
    ]
    left_out = len(x._shape) - sum(
        n
        for n, part in zip(used, parts, strict=True)
        if part is not None and part is not ...
    )
    plain: list[Any] = []
    arrays: list[Any] = []
    for count, part in zip(used, parts, strict=True):
        if isinstance(part, Tensor):
            plain += [slice(None)] * count
            arrays.append(part)
        else:
            plain.append(part)
            if part is ...:
                arrays += [slice(None)] * left_out
            elif part is None or isinstance(part, slice):
                arrays.append(slice(None))
    view = x[tuple(plain)]
    at = 0
    for i, part in enumerate(arrays):
        if isinstance(part, Tensor):
            arrays[i] = _checked_array(view, part, at)
            at += max(part.ndim, 1) if part._dtype is bool_ else 1
        else:
            at += 1
    shapes = [_index_shape(part) for part in arrays if isinstance(part, np.ndarray)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        text = ", ".join(str([*shape]) for shape in shapes)
        raise ShapeError(f"[getitem] indices must broadcast: {text}") from None
    return view, tuple(arrays)


def _index_shape(array: Array) -> tuple[int, ...]:
    """Return the shape of an index, or the number of True elements of a mask."""
    return (int(array.sum()),) if array.dtype == np.bool_ else array.shape


def _as_index(part: Any) -> Any:
    """Return a list or a tensor as an index tensor, or an integer as it is."""
    if isinstance(part, list):
        part = tensor(part) if part else tensor(part, int64)
    if part._dtype is bool_ and part.ndim:
        return part
    if part._dtype not in (int32, int64):
        text = f"{part.dtype} (shape {list(part.shape)})"
        raise DTypeError(
            f"[getitem] dtype of an index must be int32, int64 or bool: {text}"
        )
    return part if part.ndim else part.item()


def _checked_array(view: Tensor, index: Tensor, dim: int) -> Array:
    """Return an index tensor for the dimensions from `dim` on as a checked array."""
    array = index.numpy()
    if index._dtype is bool_:
        sizes = view._shape[dim : dim + index.ndim]
        if index._shape != sizes:
            shapes = f"{list(index.shape)} != {list(sizes)}"
            raise ShapeError(
                f"[getitem] mask.shape must equal the indexed sizes: {shapes} (dim "
                f"{dim}, shape {list(view.shape)})"
            )
        return array
    size = view._shape[dim]
    if array.size and not (-size <= int(array.min()) and int(array.max()) < size):
        worst = int(array.min()) if int(array.min()) < -size else int(array.max())
        place = f"{worst} (dim {dim}, shape {list(view.shape)})"
        raise IndexOutOfRangeError(
            f"[getitem] index must be in [{-size}, {size}): {place}"
        )
    return array


@op
def masked_fill(x: Tensor, mask: Tensor, value: Tensor | complex) -> Tensor:
    """Return a tensor in which a value replaces the elements where a mask is True.

    out = value if mask else x, element by element

    Args:
        x: A tensor of any dtype.
        mask: A bool tensor. The shapes broadcast.
        value: A number of the kind of the dtype, or a tensor of this dtype without
            dimensions.

    Raises:
        DTypeError: If the mask is not bool, or if the value has another kind or dtype.
        ShapeError: If the shapes do not broadcast, or if the value has dimensions.
    """
    if mask._dtype is not bool_:
        raise DTypeError(
            f"[masked_fill] mask.dtype must equal bool: {mask.dtype} (shape "
            f"{list(mask.shape)})"
        )
    if isinstance(value, Tensor):
        if value.ndim:
            raise ShapeError(f"[masked_fill] value.ndim must equal 0: {value.ndim}")
        check_same_dtype("masked_fill", x, value)
        bits = value.bits()
    else:
        bits = np.asarray(checked_scalar("masked_fill", value, x._dtype)).view(
            x._dtype.bits_dtype
        )
    result = allocate(broadcast_shapes("masked_fill", x._shape, mask._shape), x._dtype)
    result.bits()[...] = np.where(mask.numpy(), bits, x.bits())
    return result


@op
def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Return the int64 indices that sort a tensor along a dimension; see `sort`."""
    return _sort("argsort", x, dim, checked_flag("argsort", "descending", descending))[1]


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
