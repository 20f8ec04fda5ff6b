"""What the families of ops share: checks, and operands made ready for the kernels."""

from ..dtype import DType, bfloat16, float16, float32
from ..errors import DTypeError, ShapeError
from ..layout import Shape
from ..quantized import Weight
from ..tensor import Array, Tensor

# Activations that the kernels read and write as they are; float16 goes by way of float32.
KERNEL_DTYPES = (bfloat16, float32)


def check_same_dtype(op: str, a: Tensor, b: Tensor) -> None:
    """Check that two operands have one dtype.

    Raises:
        DTypeError: they differ.
    """
    if a._dtype is not b._dtype:
        raise DTypeError(
            f"[{op}] a.dtype must equal b.dtype: {a.dtype} != {b.dtype} "
            f"(a {list(a.shape)}, b {list(b.shape)})"
        )


def check_float(op: str, *tensors: Weight) -> None:
    """Check that operands hold real floating-point numbers.

    Raises:
        DTypeError: one does not.
    """
    for x in tensors:
        if not x._dtype.is_float:
            raise DTypeError(
                f"[{op}] dtype must be one of bfloat16, float16, float32: {x.dtype} "
                f"(shape {list(x.shape)})"
            )


def check_float_result(op: str, dtype: DType) -> None:
    """Check that a result may have this dtype.

    Raises:
        DTypeError: not a real floating-point dtype.
    """
    if not dtype.is_float:
        raise DTypeError(f"[{op}] dtype= must be one of bfloat16, float16, float32: {dtype}")


def check_ndim_at_least(op: str, x: Weight, ndim: int) -> None:
    """Check the number of dimensions.

    Raises:
        ShapeError: too few.
    """
    if len(x._shape) < ndim:
        raise ShapeError(f"[{op}] ndim must be >= {ndim}: {x.ndim} (shape {list(x.shape)})")


def kernel_operand(x: Tensor) -> Tensor:
    """Give a real floating-point tensor in a form that the kernels take: contiguous, no float16."""
    if x._dtype is float16:
        return x.to(float32)
    return x if x._contiguous else x.contiguous()


def kernel_dtype(dtype: DType) -> DType:
    """Give the dtype in which a kernel computes a result that is to have `dtype`."""
    return float32 if dtype is float16 else dtype


def as_rows(x: Tensor, columns: int) -> Tensor:
    """Look at a contiguous tensor [..., columns] as [rows, columns]."""
    shape = x._shape
    if len(shape) == 2:
        return x
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return x.reshape(rows, columns)


def float32_array(x: Tensor) -> Array:
    """Give the elements as a float32 array: the tensor's own memory if it is float32."""
    return x.to(float32).numpy()


def empty_float32(shape: Shape) -> Tensor:
    """Allocate a float32 result that is going to be rounded once, at the end."""
    return Tensor._empty(shape, float32)
