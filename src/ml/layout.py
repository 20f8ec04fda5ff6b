"""Arithmetic on shapes and strides. No memory is touched here; all sizes are Python ints.

Strides are in bytes, as in NumPy.
"""

import operator
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from .errors import IndexOutOfRangeError, ShapeError

Shape = tuple[int, ...]

# NumPy's own limit, which numpy() would run into.
MAX_DIMENSIONS = 64


def checked_ints(op: str, what: str, values: Iterable[Any]) -> Shape:
    """Return `values` as a tuple of Python ints; bools and floats are refused.

    Raises:
        ShapeError: a value is not an integer.
    """
    if type(values) is tuple:
        for value in values:
            if type(value) is not int:
                break
        else:
            return values
    result = []
    try:
        for value in values:
            if isinstance(value, bool):
                raise TypeError
            result.append(operator.index(value))
    except TypeError:
        raise ShapeError(f"[{op}] {what} must be integers: {values!r:.80}") from None
    return tuple(result)


def checked_shape(op: str, shape: Iterable[Any] | int) -> Shape:
    """Return `shape` as a tuple of ints that are at least 0.

    Raises:
        ShapeError: not integers, a negative size, or more than 64 dimensions.
    """
    sizes = checked_ints(op, "sizes", shape if isinstance(shape, Iterable) else (shape,))
    if len(sizes) > MAX_DIMENSIONS:
        raise ShapeError(f"[{op}] ndim must be <= {MAX_DIMENSIONS}: {len(sizes)}")
    for size in sizes:
        if size < 0:
            raise ShapeError(f"[{op}] sizes must be >= 0: {list(sizes)}")
    return sizes


@lru_cache(maxsize=8192)
def packed(shape: Shape, itemsize: int) -> tuple[Shape, int]:
    """Compute the row-major strides of `shape`, and its number of elements.

    A size of 0 counts as 1 in the strides, as in PyTorch.

    Raises:
        ShapeError: the bytes are more than an address can count.
    """
    strides = []
    step, size = itemsize, 1
    for n in reversed(shape):
        strides.append(step)
        step *= n or 1
        size *= n
    if step > sys.maxsize:
        raise ShapeError(f"[shape] bytes must be <= {sys.maxsize}: {step} (shape {list(shape)})")
    return tuple(reversed(strides)), size


def is_packed(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Tell whether the elements lie in row-major order without gaps.

    The stride of a dimension of size 1 is never used, so any value will do; a tensor without
    elements is packed.
    """
    step = itemsize
    packed_so_far = True
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 0:
            return True
        if n != 1 and stride != step:
            packed_so_far = False
        step *= n
    return packed_so_far


def byte_extent(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Compute which bytes the elements touch, relative to the first one: `[low, high)`."""
    low, high = 0, itemsize
    for n, stride in zip(shape, strides, strict=True):
        if n == 0:
            return 0, 0
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high


def resolve_dim(op: str, dim: int, ndim: int) -> int:
    """Turn a dimension number, negative ones counted from the end, into `0 <= dim < ndim`.

    Raises:
        IndexOutOfRangeError: there is no such dimension.
    """
    if type(dim) is int and -ndim <= dim < ndim:
        return dim + ndim if dim < 0 else dim
    number = checked_ints(op, "dim", (dim,))[0]
    if not -ndim <= number < ndim:
        raise IndexOutOfRangeError(f"[{op}] dim must be in [{-ndim}, {ndim}): {number}")
    return number % ndim


def resolve_reshape(shape: Shape, size: int, wanted: Sequence[Any]) -> Shape:
    """Fill in the one -1 of `wanted` and check that the number of elements stays the same.

    Raises:
        ShapeError: another number of elements, more than one -1, or a -1 that could be anything.
    """
    known = 1
    for n in wanted:
        if type(n) is not int or n < 0:
            break
        known *= n
    else:
        if known == size and len(wanted) <= MAX_DIMENSIONS:
            return tuple(wanted)
    sizes = checked_ints("reshape", "sizes", wanted)
    known = 1
    for n in sizes:
        known *= 1 if n == -1 else n
    holes = sizes.count(-1)
    if holes > 1 or any(n < -1 for n in sizes) or (holes and known == 0):
        raise ShapeError(
            f"[reshape] sizes must be >= 0 with at most one -1 that follows from the others: "
            f"{list(sizes)} (from {list(shape)})"
        )
    if holes and size % known == 0:
        sizes = tuple(size // known if n == -1 else n for n in sizes)
        known = size
    if known != size:
        raise ShapeError(
            f"[reshape] number of elements must stay equal: {size} != {known} "
            f"({list(shape)} to {list(sizes)})"
        )
    return checked_shape("reshape", sizes)


def reshape_strides(shape: Shape, strides: Shape, wanted: Shape, itemsize: int) -> Shape | None:
    """Find strides that show the same elements, in the same order, in another shape.

    Both shapes are walked from the last dimension to the first. A run of old dimensions that lie
    packed among themselves (`stride[d - 1] = shape[d] * stride[d]`) is one chunk with one step; new
    dimensions may cut a chunk, but may not reach across two.

    Args:
        shape: old sizes, without a 0 among them.
        strides: old strides in bytes.
        wanted: new sizes, with the same product.
        itemsize: bytes per element.

    Returns:
        The new strides, or None when only a copy can have this shape.
    """
    old = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n != 1]
    result: list[int] = []
    position = len(wanted) - 1
    while old:
        chunk, step = old.pop()
        while old and old[-1][1] == chunk * step:
            chunk *= old.pop()[0]
        # `step` is that of the innermost dimension of the chunk; a longer chunk keeps it.
        covered = 1
        while covered < chunk:
            n = wanted[position]
            if chunk % (covered * n):
                return None
            result.append(covered * step)
            covered *= n
            position -= 1
    # What is left of the new shape are ones; their strides are never used.
    step = result[-1] * wanted[position + 1] if result else itemsize
    result.extend([step] * (position + 1))
    return tuple(reversed(result))


def broadcast_shapes(op: str, a: Shape, b: Shape) -> Shape:
    """Find the shape that two shapes broadcast to: aligned at the right, equal or 1.

    Raises:
        ShapeError: two sizes differ and neither is 1.
    """
    if a == b:
        return a
    ndim = max(len(a), len(b))
    wide_a = (1,) * (ndim - len(a)) + a
    wide_b = (1,) * (ndim - len(b)) + b
    result = []
    for n, m in zip(wide_a, wide_b, strict=True):
        if n != m and 1 not in (n, m):
            raise ShapeError(
                f"[{op}] sizes must be equal or 1, aligned at the right: {n} != {m} "
                f"(a {list(a)}, b {list(b)})"
            )
        result.append(m if n == 1 else n)
    return tuple(result)


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape:
    """Compute strides that repeat a tensor over `target`; what is repeated has stride 0."""
    new_dims = len(target) - len(shape)
    kept = tuple(
        0 if n == 1 and m != 1 else stride
        for n, stride, m in zip(shape, strides, target[new_dims:], strict=True)
    )
    return (0,) * new_dims + kept


def check_slice(op: str, start: int, stop: int, size: int) -> None:
    """Check that `0 <= start <= stop <= size`; nothing is clamped.

    Raises:
        IndexOutOfRangeError: it does not hold.
    """
    if not 0 <= start <= stop <= size:
        raise IndexOutOfRangeError(
            f"[{op}] 0 <= start <= stop <= size must hold: start {start}, stop {stop}, size {size}"
        )
