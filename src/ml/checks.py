"""Argument checks shared by the ops, and operand conversions for the kernels.

The summary line of each check names the exception that it raises.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .dtype import DType, bfloat16, dtype_named, float32
from .errors import DTypeError, IndexOutOfRangeError, ShapeError, TensorTypeError
from .layout import Shape, broadcast_shapes, checked_shape, resolve_dim
from .tensor import Array, Tensor, TensorBase, allocate

# Activation dtypes that the kernels read and write directly. float16 is converted to
# float32 first.
KERNEL_DTYPES = frozenset((bfloat16, float32))
_FLOATS = "a real floating-point dtype"


def describe_operands(*labelled: tuple[str, TensorBase]) -> str:
    """Format operands for an error message: `x [7, 64], weight 'wq' [128, 60]`."""
    return ", ".join(f"{label} {x._label()}{list(x.shape)}" for label, x in labelled)


def check_same_dtype(op: str, a: Tensor, b: Tensor) -> None:
    """Raise DTypeError if two operands have different dtypes."""
    if a._dtype is not b._dtype:
        both = describe_operands(("a", a), ("b", b))
        raise DTypeError(
            f"[{op}] a.dtype must equal b.dtype: {a.dtype} != {b.dtype} ({both})"
        )


def check_float(op: str, *tensors: TensorBase) -> None:
    """Raise DTypeError unless all operands have real floating-point dtypes."""
    for x in tensors:
        if not x._dtype.is_float:
            hint = (
                "; dequantize() gives a plain tensor" if hasattr(x, "dequantize") else ""
            )
            raise DTypeError(
                f"[{op}] dtype must be {_FLOATS}: {x._dtype} (shape "
                f"{list(x.shape)}){hint}"
            )


def check_kind(op: str, x: Tensor, *kinds: str) -> None:
    """Raise DTypeError unless the tensor's dtype kind is one of `kinds`.

    The possible kinds are "float", "int", "complex" and "bool".
    """
    if x._dtype.kind not in kinds:
        raise DTypeError(
            f"[{op}] dtype must be of kind {' or '.join(kinds)}: {x.dtype} (shape "
            f"{list(x.shape)})"
        )


def check_ndim_at_least(op: str, x: TensorBase, ndim: int) -> None:
    """Raise ShapeError if a tensor has fewer than `ndim` dimensions."""
    if len(x._shape) < ndim:
        raise ShapeError(
            f"[{op}] ndim must be >= {ndim}: {x.ndim} (shape {list(x.shape)})"
        )


def check_indices(
    op: str, label: str, indices: Array, size: int, *labelled: tuple[str, TensorBase]
) -> None:
    """Raise IndexOutOfRangeError unless all indices are in [0, size).

    The labelled operands appear in the error message.
    """
    if indices.size:
        low = int(indices.min())
        high = int(indices.max())
        if low < 0 or high >= size:
            index = f"{low if low < 0 else high} ({describe_operands(*labelled)})"
            raise IndexOutOfRangeError(f"[{op}] {label} must be in [0, {size}): {index}")


def checked_pair(op: str, a: Any, b: Any) -> tuple[DType, Shape]:
    """Return the common dtype and the broadcast shape of two operands.

    One operand may be a number. Raise TensorTypeError if neither is a tensor, and
    DTypeError or ShapeError if two tensors are incompatible.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        check_same_dtype(op, a, b)
        return a._dtype, broadcast_shapes(op, a._shape, b._shape)
    operand = a if isinstance(a, Tensor) else b
    if not isinstance(operand, Tensor):
        raise TensorTypeError(f"[{op}] a or b must be a Tensor: {type(a).__name__}")
    return operand._dtype, operand._shape


def checked_flag(op: str, name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise TensorTypeError if it is not a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TensorTypeError(
            f"[{op}] {name} must be True or False: {type(value).__name__}"
        )
    return bool(value)


def checked_tensors(op: str, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors as a list, or raise ShapeError if there are none.

    `@op` has already checked that the argument is a sequence.
    """
    operands = list(tensors)
    if not operands:
        raise ShapeError(f"[{op}] number of tensors must be >= 1: 0")
    return operands


def resolve_dims(op: str, dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the dimensions to reduce in ascending order; None selects all of them.

    Raise IndexOutOfRangeError for a dimension that does not exist, and ShapeError for a
    repeated dimension.
    """
    if dim is None:
        return tuple(range(ndim))
    dims = dim if isinstance(dim, Sequence) else (dim,)
    resolved = sorted(resolve_dim(op, each, ndim) for each in dims)
    if len(set(resolved)) < len(resolved):
        raise ShapeError(f"[{op}] dims must differ: {list(dims)}")
    return tuple(resolved)


def sizes_and_dtype(op: str, shape: tuple[Any, ...], dtype: Any) -> tuple[Shape, DType]:
    """Return the sizes and the dtype of `op(3, 4)`, `op((3, 4))` or `op([3, 4])`.

    The dtype may also be passed after the sizes: `op((3, 4), ml.bfloat16)`.
    """
    if len(shape) > 1 and isinstance(shape[-1], DType | str):
        dtype = shape[-1]
        shape = shape[:-1]
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Iterable) else shape
    return checked_shape(op, sizes), dtype_named(op, dtype)


def float_dtype(op: str, dtype: Any) -> DType:
    """Return a floating-point dtype, passed as a DType or by name.

    Raise DTypeError for any other dtype.
    """
    row: DType = dtype if isinstance(dtype, DType) else dtype_named(op, dtype)
    if not row.is_float:
        raise DTypeError(f"[{op}] dtype= must be {_FLOATS}: {row}")
    return row


def kernel_operand(op: str, x: Tensor) -> Tensor:
    """Return x as a contiguous tensor with one of KERNEL_DTYPES.

    x is copied only if necessary. Raise DTypeError if x is not a floating-point tensor.
    """
    if x._dtype in KERNEL_DTYPES:
        return x if x._pointer is not None else x.contiguous()
    check_float(op, x)
    return x.to(float32)


def comparable(x: Tensor) -> Array:
    """Return the elements in a dtype that NumPy can sort: floats become float32."""
    return (x.to(float32) if x._dtype.is_float else x).numpy()


def rounded(values: Any, dtype: DType) -> Tensor:
    """Round float64 values to float32, and then to `dtype`."""
    result = allocate(np.shape(values), float32)
    result.numpy()[...] = values
    return result.to(dtype)
