"""Shape, stride and index arithmetic on Python integers.

Strides are in bytes, as in NumPy. The summary line of each check names the exception that
it raises.
"""

import itertools
import math
import operator
import sys
from collections.abc import Iterable
from functools import lru_cache
from types import EllipsisType
from typing import Any

import numpy as np

from .errors import IndexOutOfRangeError, ShapeError, TensorError

Shape = tuple[int, ...]
IndexPart = int | slice | EllipsisType | None
Index = IndexPart | tuple[IndexPart, ...]

# NumPy's limit, so that `Tensor.numpy()` works for every tensor.
MAX_DIMENSIONS = 64

# The letters that notebooks show for sizes. `name_sizes` sets them.
letters_of_sizes: dict[int, str] = {}


def name_sizes(**sizes: int) -> None:
    """Set the letters that notebooks show for sizes: `name_sizes(T=27, D=192)`.

    They replace the letters of the last call. If two letters have the same size, the
    first one is shown. Raise ShapeError if a size is not an integer.
    """
    letters: dict[int, str] = {}
    for letter, size in sizes.items():
        (n,) = checked_ints("name_sizes", "sizes", (size,))
        letters.setdefault(n, letter)
    letters_of_sizes.clear()
    letters_of_sizes.update(letters)


def checked_ints(op: str, label: str, values: Iterable[Any]) -> Shape:
    """Return `values` as a tuple of ints; raise ShapeError for non-integers and bools."""
    if type(values) is tuple and {*map(type, values)} <= {int}:
        return values
    try:
        return tuple([_as_int(value) for value in values])
    except TypeError:
        raise ShapeError(f"[{op}] {label} must be integers: {values!r:.80}") from None


def _as_int(value: Any) -> int:
    """Return an integer as a Python int; raise TypeError for non-integers and bools."""
    if isinstance(value, bool | np.bool_):  # older NumPy accepts np.bool_ as an index
        raise TypeError
    return operator.index(value)


def checked_shape(op: str, shape: Iterable[Any] | int) -> Shape:
    """Return `shape` as a tuple of at most 64 non-negative ints, or raise ShapeError."""
    sizes = checked_ints(op, "sizes", shape if isinstance(shape, Iterable) else (shape,))
    if len(sizes) > MAX_DIMENSIONS:
        raise ShapeError(f"[{op}] ndim must be <= {MAX_DIMENSIONS}: {len(sizes)}")
    for size in sizes:
        if size < 0:
            raise ShapeError(f"[{op}] sizes must be >= 0: {list(sizes)}")
    return sizes


@lru_cache(maxsize=8192)
def packed(shape: Shape, itemsize: int) -> tuple[Shape, int]:
    """Return the row-major strides and the number of elements of `shape`.

    A size of 0 counts as 1 in the strides, as in PyTorch. Raise ShapeError if the tensor
    would exceed the address space.
    """
    strides = []
    step = itemsize
    size = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n or 1
        size *= n
    if step > sys.maxsize:
        raise ShapeError(
            f"[shape] bytes must be <= {sys.maxsize}: {step} (shape {list(shape)})"
        )
    return tuple(reversed(strides)), size


def byte_extent(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Return the byte range `[low, high)` of all elements, relative to the first one."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    low = sum(min(step, 0) for step in steps)
    high = itemsize + sum(max(step, 0) for step in steps)
    return low, high


def resolve_dim(op: str, dim: int, ndim: int) -> int:
    """Normalize a dimension, which may be negative, to `0 <= dim < ndim`.

    Raise IndexOutOfRangeError if the dimension does not exist.
    """
    if type(dim) is int and -ndim <= dim < ndim:
        return dim + ndim if dim < 0 else dim
    number = checked_ints(op, "dim", (dim,))[0]
    if not -ndim <= number < ndim:
        raise IndexOutOfRangeError(f"[{op}] dim must be in [{-ndim}, {ndim}): {number}")
    return number % ndim


def resolve_reshape(shape: Shape, size: int, wanted: tuple[Any, ...]) -> Shape:
    """Return `wanted`, with -1 replaced by the size that preserves the element count.

    Raise ShapeError if the element counts differ, or if -1 is ambiguous or repeated.
    """
    count = 1  # fast path for decode steps, without function calls
    for n in wanted:
        if type(n) is not int or n < 1:
            break
        count *= n
    else:
        if count == size and len(wanted) <= MAX_DIMENSIONS:
            return wanted
    sizes = checked_ints("reshape", "sizes", wanted)
    holes = sizes.count(-1)
    count = math.prod(sizes) * (-1) ** holes
    if holes > 1 or min(sizes, default=0) < -1 or (holes and count == 0):
        raise ShapeError(
            "[reshape] sizes must be >= 0 with at most one -1 that follows from the "
            f"others: {list(sizes)} (from {list(shape)})"
        )
    if size % count if holes else size != count:
        numbers = f"{size} != {count} ({list(shape)} to {list(sizes)})"
        raise ShapeError(f"[reshape] number of elements must stay equal: {numbers}")
    filled = [size // count if n == -1 else n for n in sizes] if holes else sizes
    return checked_shape("reshape", filled)


def broadcast_shapes(op: str, a: Shape, b: Shape) -> Shape:
    """Return the shape that two shapes broadcast to, aligned at the last dimension.

    Raise ShapeError if two sizes differ and neither is 1.
    """
    if a == b:
        return a
    pairs = [*itertools.zip_longest(reversed(a), reversed(b), fillvalue=1)][::-1]
    for n, m in pairs:
        if n != m and 1 not in (n, m):
            sizes = f"{n} != {m} (a {list(a)}, b {list(b)})"
            raise ShapeError(
                f"[{op}] sizes must be equal or 1, aligned at the right: {sizes}"
            )
    return tuple(m if n == 1 else n for n, m in pairs)


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape:
    """Return strides that broadcast a tensor to `target`, 0 in repeated dimensions."""
    new_dims = len(target) - len(shape)
    kept = tuple(
        0 if n == 1 and m != 1 else stride
        for n, stride, m in zip(shape, strides, target[new_dims:], strict=True)
    )
    return (0,) * new_dims + kept


def check_slice(op: str, start: int, stop: int, size: int) -> None:
    """Raise IndexOutOfRangeError unless `0 <= start <= stop <= size`."""
    if not 0 <= start <= stop <= size:
        raise IndexOutOfRangeError(
            f"[{op}] 0 <= start <= stop <= size must hold: start {start}, stop {stop}, "
            f"size {size}"
        )


def resolve_index(shape: Shape, strides: Shape, key: Any) -> tuple[Shape, Shape, int]:
    """Return the shape, strides and byte offset of the view that an index selects.

    None inserts a dimension of size 1. Bounds are strict: a slice that Python would
    silently clamp is rejected, such as `m[5:500]` of 10 elements. Raise
    IndexOutOfRangeError if a bound is out of range or if there are more indices than
    dimensions, and TensorError for an unsupported index type.
    """
    parts = key if isinstance(key, tuple) else (key,)
    ellipses = [part for part in parts if part is Ellipsis]
    if len(ellipses) > 1:
        raise TensorError(f"[getitem] number of Ellipsis must be <= 1: {len(ellipses)}")
    new_dims = sum(part is None for part in parts)
    left_out = len(shape) + len(ellipses) + new_dims - len(parts)
    if left_out < 0:
        counts = f"{len(shape) - left_out} > {len(shape)} (shape {list(shape)})"
        raise IndexOutOfRangeError(
            f"[getitem] number of indices must be <= ndim: {counts}"
        )
    new_shape: list[int] = []
    new_strides: list[int] = []
    offset = dim = 0
    for part in parts if ellipses else (*parts, ...):
        if part is Ellipsis:
            new_shape += shape[dim : dim + left_out]
            new_strides += strides[dim : dim + left_out]
            dim += left_out
            continue
        if part is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        size = shape[dim]
        stride = strides[dim]
        if isinstance(part, slice):
            start, count, step = _resolve_slice(part, size, dim, shape)
            offset += start * stride
            new_shape.append(count)
            new_strides.append(stride * step)
        else:
            index = _checked_index(part)
            if not -size <= index < size:
                place = f"{index} (dim {dim}, shape {list(shape)})"
                raise IndexOutOfRangeError(
                    f"[getitem] index must be in [{-size}, {size}): {place}"
                )
            offset += index % size * stride
        dim += 1
    return tuple(new_shape), tuple(new_strides), offset


def _checked_index(value: Any) -> int:
    try:
        return _as_int(value)
    except TypeError:
        raise TensorError(
            "[getitem] an index must be an integer, a slice, an Ellipsis, None, a list, "
            f"or a tensor of integers or bools: {type(value).__name__}"
        ) from None


def _resolve_slice(
    part: slice, size: int, dim: int, shape: Shape
) -> tuple[int, int, int]:
    """Return the start, the length and the step of a slice."""
    start = 0 if part.start is None else _checked_index(part.start)
    stop = size if part.stop is None else _checked_index(part.stop)
    step = 1 if part.step is None else _checked_index(part.step)
    start += size if start < 0 else 0
    stop += size if stop < 0 else 0
    if not 0 <= start <= stop <= size:
        raise IndexOutOfRangeError(
            f"[getitem] 0 <= start <= stop <= size must hold: start {part.start}, "
            f"stop {part.stop}, size {size} (dim {dim}, shape {list(shape)})"
        )
    if step < 1:
        raise IndexOutOfRangeError(f"[getitem] step must be >= 1: {step} (dim {dim})")
    return start, -(-(stop - start) // step), step
