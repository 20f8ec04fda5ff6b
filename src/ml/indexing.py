"""Turn what stands in square brackets into a view: a shape, strides and an offset.

Bounds are strict. A Python slice that reaches beyond the end is clamped without a word
(`m[5:500]` of 10 elements has 5); here it is refused.
"""

import operator
from types import EllipsisType
from typing import Any

from .errors import IndexOutOfRangeError, TensorError
from .layout import Shape

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]


def resolve_index(shape: Shape, strides: Shape, key: Any) -> tuple[Shape, Shape, int]:
    """Compute the view that `key` selects.

    Args:
        shape: sizes of the tensor.
        strides: strides of the tensor in bytes.
        key: an integer, a slice with a step of at least 1, an Ellipsis, or a tuple of these.

    Returns:
        Shape, strides, and how many bytes the first element lies after the tensor's own.

    Raises:
        IndexOutOfRangeError: an index or an end of a slice outside of its dimension, or more
            indices than dimensions.
        TensorError: something else in the brackets.
    """
    parts = key if isinstance(key, tuple) else (key,)
    parts = _without_ellipsis(parts, shape)
    new_shape: list[int] = []
    new_strides: list[int] = []
    offset = 0
    for dim, part in enumerate(parts):
        size, stride = shape[dim], strides[dim]
        if isinstance(part, slice):
            start, count, step = _resolve_slice(part, size, dim, shape)
            offset += start * stride
            new_shape.append(count)
            new_strides.append(stride * step)
        else:
            offset += _resolve_integer(part, size, dim, shape) * stride
    rest = len(parts)
    view_shape = (*new_shape, *shape[rest:])
    if 0 in view_shape:
        offset = 0  # nothing is read; an address past the end would be of no use
    return view_shape, (*new_strides, *strides[rest:]), offset


def _without_ellipsis(parts: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
    """Replace an Ellipsis by as many full slices as there are dimensions without an index."""
    places = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(places) > 1:
        raise TensorError(f"[getitem] number of Ellipsis must be <= 1: {len(places)}")
    indices = len(parts) - len(places)
    if indices > len(shape):
        raise IndexOutOfRangeError(
            f"[getitem] number of indices must be <= ndim: {indices} > {len(shape)} "
            f"(shape {list(shape)})"
        )
    if not places:
        return parts
    at = places[0]
    return parts[:at] + (slice(None),) * (len(shape) - indices) + parts[at + 1 :]


def _as_integer(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TensorError(
            f"[getitem] an index must be an integer, a slice or an Ellipsis: {type(value).__name__}"
        ) from None


def _resolve_integer(value: Any, size: int, dim: int, shape: Shape) -> int:
    index = _as_integer(value)
    if not -size <= index < size:
        raise IndexOutOfRangeError(
            f"[getitem] index must be in [{-size}, {size}): {index} "
            f"(dim {dim}, shape {list(shape)})"
        )
    return index + size if index < 0 else index


def _resolve_slice(part: slice, size: int, dim: int, shape: Shape) -> tuple[int, int, int]:
    """Return first index, number of indices, and step of a slice."""
    start = 0 if part.start is None else _as_integer(part.start)
    stop = size if part.stop is None else _as_integer(part.stop)
    step = 1 if part.step is None else _as_integer(part.step)
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
