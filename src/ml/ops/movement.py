"""Ops that copy elements, or view them in another shape, without changing them."""

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..checks import check_same_dtype, checked_tensors, resolve_dims
from ..errors import DTypeError, ShapeError
from ..layout import broadcast_strides, checked_ints, checked_shape, packed, resolve_dim
from ..op import op
from ..tensor import Tensor, allocate


@op
def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors along an existing dimension.

    Args:
        tensors: At least one tensor. All tensors must have the same dtype, and the same
            sizes in every dimension except `dim`.
        dim: The dimension. Negative dimensions count from the end.

    Returns:
        A new tensor whose size in `dim` is the sum of the tensors' sizes.

    Raises:
        ShapeError: If there are no tensors, or if their sizes differ in another
            dimension.
        DTypeError: If the dtypes differ.
        IndexOutOfRangeError: If the dimension does not exist.
    """
    tensors = checked_tensors("concatenate", tensors)
    first = tensors[0]
    dim = resolve_dim("concatenate", dim, first.ndim)
    total = 0
    for i, x in enumerate(tensors):
        if x.dtype is not first.dtype:
            dtypes = f"{first.dtype} != {x.dtype} (tensors 0 and {i})"
            raise DTypeError(f"[concatenate] dtypes must be equal: {dtypes}")
        others = (*x.shape[:dim], first.shape[dim], *x.shape[dim + 1 :])
        if x.ndim != first.ndim or others != first.shape:
            shapes = f"{list(first.shape)} != {list(x.shape)} (tensors 0 and {i})"
            raise ShapeError(
                f"[concatenate] shapes must be equal outside of dim {dim}: {shapes}"
            )
        total += x.shape[dim]
    result = allocate((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)
    np.concatenate([x.bits() for x in tensors], axis=dim, out=result.bits())
    return result


cat = concatenate  # PyTorch has both names


@op
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors with the same shape and dtype along a new dimension."""
    tensors = checked_tensors("stack", tensors)
    for x in tensors:
        check_same_dtype("stack", tensors[0], x)
        if x._shape != tensors[0]._shape:
            raise ShapeError(
                f"[stack] shapes must be equal: {list(tensors[0].shape)} != "
                f"{list(x.shape)}"
            )
    return concatenate([_insert_dim("stack", x, dim) for x in tensors], dim)


@op
def split(x: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor into views along a dimension.

    `split_size` is either the size of each part, where the last part may be smaller, or a
    sequence with the sizes of all parts.
    """
    dim = resolve_dim("split", dim, len(x._shape))
    total = x._shape[dim]
    if isinstance(split_size, Iterable):
        sizes = checked_shape("split", split_size)
    else:
        part_size = checked_ints("split", "split_size", (split_size,))[0]
        if part_size < 1:
            raise ShapeError(f"[split] split_size must be >= 1: {part_size}")
        sizes = tuple(
            min(part_size, total - at) for at in range(0, total, part_size)
        ) or (0,)
    if sum(sizes) != total:
        sums = f"{sum(sizes)} != {total} (shape {list(x.shape)})"
        raise ShapeError(f"[split] sizes must add up to shape[{dim}]: {sums}")
    starts = itertools.accumulate(sizes, initial=0)
    before = x._shape[:dim]
    after = x._shape[dim + 1 :]
    step = x.strides[dim]
    return tuple(
        x._view((*before, size, *after), x.strides, x._offset + start * step)
        for start, size in zip(starts, sizes, strict=False)
    )


@op
def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Return a view without the dimensions of size 1, or only without those in `dim`."""
    chosen = resolve_dims("squeeze", dim, len(x._shape))
    kept = [d for d, n in enumerate(x._shape) if n != 1 or d not in chosen]
    return _with_dims(x, kept)


@op
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return a view with a new dimension of size 1 at position `dim`."""
    return _insert_dim("unsqueeze", x, dim)


@op
def permute(x: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """Return a view with reordered dimensions.

    out.shape[i] = x.shape[dims[i]]

    `dims` may be separate arguments or one sequence.
    """
    ndim = len(x._shape)
    order = [resolve_dim("permute", dim, ndim) for dim in _as_tuple(dims)]
    if sorted(order) != list(range(ndim)):
        raise ShapeError(f"[permute] dims must be each of [0, {ndim}) once: {order}")
    return _with_dims(x, order)


@op
def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge the dimensions from `start_dim` to `end_dim`, inclusive, into one.

    Like `reshape`, return a view if possible, and otherwise a copy.
    """
    shape = x._shape or (1,)
    first, last = (
        resolve_dim("flatten", dim, len(shape)) for dim in (start_dim, end_dim)
    )
    if first > last:
        raise ShapeError(f"[flatten] start_dim must be <= end_dim: {first} > {last}")
    return x.reshape(
        *shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]
    )


@op
def expand(x: Tensor, *sizes: int | Sequence[int]) -> Tensor:
    """Return a view that repeats dimensions of size 1, with strides of 0.

    `sizes` are the sizes of the result, as separate arguments or as one sequence, aligned
    at the last dimension. A size of -1 keeps the existing size.
    """
    wanted = checked_ints("expand", "sizes", _as_tuple(sizes))
    new = len(wanted) - len(x._shape)
    old = (-1,) * new + x._shape
    target = tuple(m if n == -1 else n for n, m in zip(wanted, old, strict=False))
    if new < 0 or any(
        n != m for n, m in zip(target[new:], x._shape, strict=True) if m != 1
    ):
        rule = "sizes must equal x.shape, aligned at the right, where it is not 1"
        raise ShapeError(f"[expand] {rule}: {list(wanted)} (shape {list(x.shape)})")
    packed(
        checked_shape("expand", target), x._dtype.itemsize
    )  # raises if the address space is exceeded
    return x._view(target, broadcast_strides(x._shape, x.strides, target), x._offset)


@op
def repeat_interleave(x: Tensor, repeats: int | Tensor, dim: int | None = None) -> Tensor:
    """Repeat each element, or each index of a dimension, several times in a row.

    repeat_interleave([a, b], 2) = [a, a, b, b]

    Args:
        x: A tensor of any dtype.
        repeats: How often each index is repeated: an integer >= 0, or an integer tensor
            with one element per index.
        dim: The dimension. By default, the elements are repeated in row-major order, and
            the result has one dimension.

    Returns:
        A new tensor with the dtype of `x`.

    Raises:
        ShapeError: If a number of repeats is negative or not an integer, or if there is
            not one for each index.
        IndexOutOfRangeError: If the dimension does not exist.
    """
    if dim is None:
        x = x.reshape(x._size)
        dim = 0
    dim = resolve_dim("repeat_interleave", dim, len(x._shape))
    size = x._shape[dim]
    values = repeats.tolist() if isinstance(repeats, Tensor) else repeats
    counts = checked_shape("repeat_interleave", values)
    if len(counts) not in (1, size):
        text = f"{len(counts)} and {size} (shape {list(x.shape)})"
        raise ShapeError(
            f"[repeat_interleave] len(repeats) must equal 1 or shape[{dim}]: {text}"
        )
    total = counts[0] * size if len(counts) == 1 else sum(counts)
    result = allocate((*x._shape[:dim], total, *x._shape[dim + 1 :]), x._dtype)
    result.bits()[...] = np.repeat(x.bits(), counts, dim)
    return result


def _as_tuple(values: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """Return (1, 2) for the arguments of both `op(x, 1, 2)` and `op(x, (1, 2))`."""
    is_sequence = len(values) == 1 and isinstance(values[0], Sequence)
    return tuple(values[0] if is_sequence else values)  # type: ignore[arg-type]


def _with_dims(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return a view with only the dimensions `dims`, in this order.

    All other dimensions must have size 1.
    """
    shape, strides = (tuple(values[d] for d in dims) for values in (x._shape, x.strides))
    return x._view(shape, strides, x._offset)


def _insert_dim(op: str, x: Tensor, dim: int) -> Tensor:
    at = resolve_dim(op, dim, len(x._shape) + 1)
    shape = checked_shape(op, (*x._shape[:at], 1, *x._shape[at:]))
    strides = (*x.strides[:at], x._dtype.itemsize, *x.strides[at:])
    return x._view(shape, strides, x._offset)
