"""What native.py checks before a kernel is called.

The checks read the tensors' slots: a property takes as long as the check itself, and a token of a
small model takes hundreds of them.
"""

from typing import TYPE_CHECKING

from .errors import DTypeError, ShapeError, TensorError

if TYPE_CHECKING:
    from .dtype import DType
    from .quantized import Weight
    from .tensor import Tensor


def type_code(op: str, label: str, x: "Tensor", codes: dict[str, int]) -> int:
    """Check that a dtype is among those of a table; return its number in C."""
    code = codes.get(x._dtype.name)
    if code is None:
        raise DTypeError(
            f"[{op}] {label}.dtype must be one of {', '.join(codes)}: {x.dtype} "
            f"({label} {list(x.shape)})"
        )
    return code


def check_dtype(op: str, label: str, x: "Weight", like: "Weight") -> None:
    """Check that a tensor has the dtype of another."""
    if x._dtype is not like._dtype:
        raise DTypeError(f"[{op}] {label}.dtype must equal {like.dtype}: {x.dtype}")


def check_dtype_is(op: str, label: str, x: "Tensor", dtype: "DType") -> None:
    """Check that a tensor has a dtype."""
    if x._dtype is not dtype:
        raise DTypeError(f"[{op}] {label}.dtype must equal {dtype}: {x.dtype}")


def check_size(op: str, label: str, x: "Tensor", size: int) -> None:
    """Check the number of elements."""
    if x._size != size:
        raise ShapeError(f"[{op}] {label}.size must equal {size}: {x._size}")


def check_shape(op: str, label: str, x: "Tensor", shape: tuple[int, ...]) -> None:
    """Check the sizes."""
    if x._shape != shape:
        raise ShapeError(f"[{op}] {label}.shape must equal {list(shape)}: {list(x.shape)}")


def check_ndim(op: str, label: str, x: "Weight", ndim: int) -> None:
    """Check the number of dimensions."""
    if len(x._shape) != ndim:
        raise ShapeError(
            f"[{op}] {label}.ndim must equal {ndim}: {len(x.shape)} ({label} {list(x.shape)})"
        )


def dense(op: str, label: str, x: "Tensor") -> int:
    """Check that elements lie side by side in their storage, at a multiple of their size.

    Returns:
        Their address. Only addresses that were checked here or in `strided_rows` become pointers.
    """
    if not (x._contiguous or x.is_contiguous):
        raise TensorError(
            f"[{op}] {label} must be contiguous and aligned: strides {list(x.strides)} of shape "
            f"{list(x.shape)} at address {x.data_pointer}"
        )
    return _inside(op, label, x, x._size * x._dtype.itemsize)


def _inside(op: str, label: str, x: "Tensor", nbytes: int) -> int:
    """Check that so many bytes lie in the storage from the first element on; return its address."""
    storage, low = x._storage, x._offset
    if not 0 <= low <= low + nbytes <= storage._nbytes:
        raise TensorError(
            f"[{op}] {label} must lie in bytes [0, {storage._nbytes}) of its storage: "
            f"[{low}, {low + nbytes}) ({label} {list(x.shape)})"
        )
    return storage._address + low


def output(op: str, out: "Tensor") -> int:
    """Check that a result lies side by side and may be written; return its address."""
    if not out._storage._writable:
        raise TensorError(f"[{op}] out must be writable: it is read-only (out {list(out.shape)})")
    return dense(op, "out", out)


def check_apart(op: str, out: "Tensor", address: int, low: int, nbytes: int) -> None:
    """Check that the result, at an address, shares nothing with the bytes of an input."""
    end = address + out._size * out._dtype.itemsize
    if low < end and address < low + nbytes:
        raise TensorError(
            f"[{op}] out must not overlap an input: bytes [{address}, {end}) and "
            f"[{low}, {low + nbytes})"
        )


def check_apart_or_same(op: str, out: "Tensor", address: int, low: int, x: "Tensor") -> None:
    """Check the same, but let the result take the very place of an input of equal size."""
    if low != address or x._dtype.itemsize != out._dtype.itemsize:
        check_apart(op, out, address, low, x._size * x._dtype.itemsize)


def strided_rows(label: str, x: "Tensor") -> tuple[int, int]:
    """Check an operand of batched_matmul; return its address and how many bytes it spans."""
    op = "batched_matmul"
    check_ndim(op, label, x, 3)
    (batch, rows, columns), itemsize = x._shape, x._dtype.itemsize
    batch_stride, row_stride, stride = x._strides
    address = x._storage._address + x._offset
    if stride != itemsize and columns > 1:
        raise TensorError(
            f"[{op}] {label}.strides[2] must equal {itemsize}: {stride} (shape {list(x.shape)})"
        )
    if batch_stride < 0 or row_stride < 0:
        raise TensorError(f"[{op}] {label}.strides must be >= 0: {list(x.strides)}")
    if (address | batch_stride | row_stride) % itemsize:
        raise TensorError(
            f"[{op}] {label} must be aligned to {itemsize} bytes: address {address}, strides "
            f"{list(x.strides)}"
        )
    last = (batch - 1) * batch_stride + (rows - 1) * row_stride + columns * itemsize
    nbytes = last if x._size else 0
    return _inside(op, label, x, nbytes), nbytes
