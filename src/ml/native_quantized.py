"""The part of the door to C for block-quantised tensors (see `native.py`)."""

from typing import TYPE_CHECKING

from .dtype import BlockDType, nf4
from .errors import IndexOutOfRangeError
from .kernel_settings import ffi, kernel_threads, lib
from .native_checks import (
    check_apart,
    check_dtype_is,
    check_ndim,
    check_shape,
    check_size,
    dense,
    output,
    type_code,
)
from .native_memory import pointer

if TYPE_CHECKING:
    from .quantized import QuantizedTensor
    from .tensor import Tensor

_TYPES = {"bfloat16": lib.TYPE_BF16, "float16": lib.TYPE_F16, "float32": lib.TYPE_F32}

_QUANTIZED_WEIGHT = ffi.typeof("QuantizedWeight *")


def quantize(x: "Tensor", dtype: BlockDType, codes: "Tensor", scales: "Tensor") -> int:
    """Compute codes and scales of blocks.

    Args:
        x: any shape, bfloat16, float16 or float32, contiguous.
        dtype: nf4 or int8_block.
        codes: of the type that the dtype says, as many as are needed.
        scales: likewise, one for each block.

    Returns:
        How many elements are NaN or infinite; what they became means nothing.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    x_type = type_code("quantize", "x", x, _TYPES)
    for label, part, part_dtype, per_item in (
        ("codes", codes, dtype.codes, dtype.codes_per_item),
        ("scales", scales, dtype.scales, dtype.block_size),
    ):
        check_dtype_is("quantize", label, part, part_dtype)
        check_size("quantize", label, part, -(-x._size // per_item))
    x_at = dense("quantize", "x", x)
    codes_at, scales_at = output("quantize", codes), output("quantize", scales)
    if x._size == 0:
        return 0
    check_apart("quantize", codes, codes_at, x_at, x.nbytes)
    check_apart("quantize", scales, scales_at, x_at, x.nbytes)
    check_apart("quantize", scales, scales_at, codes_at, codes.nbytes)
    return int(
        lib.quantize(
            pointer(x_at), x_type, pointer(codes_at), pointer(scales_at),
            lib.QUANTIZED_NF4 if dtype is nf4 else lib.QUANTIZED_INT8, x._size, threads,
        )
    )  # fmt: skip


def dequantize(weight: "QuantizedTensor", rows: "Tensor | None", out: "Tensor") -> None:
    """Compute elements of a block-quantised tensor: all of them, or those of some rows.

    out = weight, or out[t, i] = weight[rows[t], i]

    Args:
        weight: any shape, or [V, D] where there are rows.
        rows: [T] int32, each `0 <= row < V`; None for all elements.
        out: the shape of the weight, or [T, D]; bfloat16, float16 or float32.

    Raises:
        IndexOutOfRangeError: a row that is not there.
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    out_type = type_code("dequantize", "out", out, _TYPES)
    T, columns, rows_at = 1, weight._size, 0
    shape: tuple[int, ...] = weight._shape
    if rows is not None:
        check_ndim("dequantize", "rows", rows, 1)
        type_code("dequantize", "rows", rows, {"int32": 0})
        check_ndim("dequantize", "weight", weight, 2)
        T, columns = rows._shape[0], weight._shape[1]
        rows_at, shape = dense("dequantize", "rows", rows), (T, columns)
        _check_rows(weight, rows)
    check_shape("dequantize", "out", out, shape)
    out_at = output("dequantize", out)
    if out._size == 0:
        return
    for part in weight.parts():
        check_apart("dequantize", out, out_at, part.data_pointer, part.nbytes)
    if rows is not None:
        check_apart("dequantize", out, out_at, rows_at, rows.nbytes)
    lib.dequantize(
        ffi.new(_QUANTIZED_WEIGHT, weight.kernel_fields), pointer(rows_at), pointer(out_at),
        out_type, T, columns, threads,
    )  # fmt: skip


def _check_rows(weight: "QuantizedTensor", rows: "Tensor") -> None:
    if rows._size == 0:
        return
    numbers = rows.numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= weight._shape[0]:
        raise IndexOutOfRangeError(
            f"[dequantize] rows must be in [0, {weight._shape[0]}): {low if low < 0 else high} "
            f"(weight {list(weight._shape)}, rows {list(rows._shape)})"
        )
