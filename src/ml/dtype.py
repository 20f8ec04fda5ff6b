"""Element types, defined in one table with a row per dtype.

`python -m tools.write_dtypes` generates `csrc/dtypes.h` from these rows, so the C type
codes and sizes are defined only here.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import ml_dtypes
import numpy as np

from .errors import DTypeError, TensorError
from .kernels import lib

# The public names, which `ml` re-exports.
__all__ = [
    "BLOCK_DTYPES",
    "DTYPES",
    "GGML_DTYPES",
    "BlockDType",
    "DType",
    "bfloat16",
    "bool_",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "int8",
    "int8_block",
    "int32",
    "int64",
    "nf4",
    "uint8",
    "uint16",
]

# Functions that convert a value to a Python number, by dtype kind.
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": operator.index,
    "complex": complex,
    "bool": lambda x: complex(x) != 0,
}
# Numbers with a smaller magnitude round to float32 without an overflow or a warning.
_SAFE = 1e38


def _code(name: str) -> int:
    """Return the C code of a type, or -1 if the kernels do not support the type."""
    return int(getattr(lib, f"TYPE_{name.upper()}", -1))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """An element type.

    Args:
        name: The name shown in messages and traces.
        itemsize: Bytes per element.
        kind: "float", "int", "complex" or "bool".
        is_float: Whether elements are real floating-point numbers that the kernels
            support.
        numpy_dtype: The corresponding NumPy dtype.
        bits_dtype: The unsigned integer dtype of the same width, used to move elements
            without changing them. NumPy copies plain integers faster than bfloat16, and
            NaN bit patterns are preserved.
        product_type: The dtype in which weights of this type are multiplied: "bfloat16"
            or "float32", whichever is the narrowest that represents every element
            exactly. Empty if the type is not supported for weights.
        file_name: The name in safetensors files. Empty if the format does not define the
            type, or if it is not read from such files.
        code: The C code of the type, `TYPE_NAME` in csrc/dtypes.h, or -1 if the kernels
            do not support the type.
    """

    name: str
    itemsize: int
    kind: Literal["float", "int", "complex", "bool"]
    is_float: bool
    numpy_dtype: "np.dtype[Any]"
    bits_dtype: "np.dtype[Any]"
    product_type: str
    file_name: str
    code: int

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_named, ("unpickle", self.name)  # copies are the same object


def _row(
    name: str,
    kind: Literal["float", "int", "complex", "bool"],
    numpy_type: Any,
    file_name: str = "",
    product_type: str = "",
) -> DType:
    numpy_dtype = np.dtype(numpy_type)
    code = _code(name)
    return DType(
        name, numpy_dtype.itemsize, kind, kind == "float" and code >= 0, numpy_dtype,
        np.dtype(f"u{numpy_dtype.itemsize}"), product_type, file_name, code,
    )  # fmt: skip


bfloat16 = _row("bfloat16", "float", ml_dtypes.bfloat16, "BF16", "bfloat16")
float16 = _row("float16", "float", np.float16, "F16", "float32")
float32 = _row("float32", "float", np.float32, "F32", "float32")
float8_e4m3fn = _row(
    "float8_e4m3fn", "float", ml_dtypes.float8_e4m3fn, "F8_E4M3", "bfloat16"
)
float8_e5m2 = _row("float8_e5m2", "float", ml_dtypes.float8_e5m2, "F8_E5M2", "bfloat16")
int64 = _row("int64", "int", np.int64, "I64")
int32 = _row("int32", "int", np.int32, "I32")
uint16 = _row("uint16", "int", np.uint16, "U16")
int8 = _row("int8", "int", np.int8, "I8")
uint8 = _row("uint8", "int", np.uint8, "U8")
bool_ = _row("bool", "bool", np.bool_)
complex64 = _row("complex64", "complex", np.complex64, "C64")

DTYPES = (
    bfloat16,
    float16,
    float32,
    float8_e4m3fn,
    float8_e5m2,
    int64,
    int32,
    uint16,
    int8,
    uint8,
    bool_,
    complex64,
)
_BY_NAME = {row.name: row for row in DTYPES}
_BY_NUMPY_DTYPE = {row.numpy_dtype: row for row in DTYPES}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockDType:
    """A block-quantized element type: small codes, with a scale for each block of codes.

    The elements are not individually addressable, so they are stored in a
    `QuantizedTensor` instead of a `Tensor`.

    Args:
        name: The name shown in messages and traces.
        block_size: Elements per block. Blocks span all elements in row-major order.
        codes: The dtype of the items that store codes or whole blocks.
        codes_per_item: Codes per item, or 0 if blocks contain their scales.
        scales: The dtype of the scales.
        double_scales: The dtype of scales that are quantized themselves, or None.
        bytes_with_scales: Bytes per block if a block contains both codes and scales, as
            in GGUF files, where each row consists of whole blocks. 0 if the scales are
            stored separately.
    """

    name: str
    block_size: int
    codes: DType
    codes_per_item: int
    scales: DType
    double_scales: DType | None = None
    bytes_with_scales: int = 0
    is_float: ClassVar[bool] = False  # elements become floats when dequantized

    @property
    def code_bytes(self) -> int:
        """Bytes per block for the codes, including any scales inside the block."""
        return (
            self.bytes_with_scales
            or self.bytes_of(self.block_size) - self.scales.itemsize
        )

    @property
    def block_bytes(self) -> int:
        """Bytes per block, including its scale."""
        return self.bytes_of(self.block_size)

    @property
    def code(self) -> int:
        """The C code of the type, `TYPE_NAME` in csrc/dtypes.h."""
        return _code(self.name)

    def bytes_of(self, size: int) -> int:
        """Return how many bytes `size` elements occupy, including their scales.

        The last block may be shorter than the others.
        """
        blocks = -(-size // self.block_size)
        if self.bytes_with_scales:
            return blocks * self.bytes_with_scales
        return (
            -(-size // self.codes_per_item) * self.codes.itemsize
            + blocks * self.scales.itemsize
        )

    @property
    def double_code(self) -> int:
        """The C code of the type with double scales, or -1 if there is no such type."""
        return _code(f"{self.name}_double")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return block_dtype_named, ("unpickle", self.name)  # copies are the same object


nf4 = BlockDType("nf4", 64, uint8, 2, float32, uint8)
# As large as llama.cpp's Q8_0. The product of code and scale is exact in float32.
int8_block = BlockDType("int8_block", 32, int8, 1, bfloat16)

BLOCK_DTYPES = (nf4, int8_block)
# GGUF formats: type number in the file, name, elements per block, and bytes per block.
GGML_DTYPES = {
    number: BlockDType(name, size, uint8, 0, float16, None, nbytes)
    for number, name, size, nbytes in (
        (2, "q4_0", 32, 18),
        (3, "q4_1", 32, 20),
        (6, "q5_0", 32, 22),
        (7, "q5_1", 32, 24),
        (8, "q8_0", 32, 34),
        (10, "q2_k", 256, 84),
        (11, "q3_k", 256, 110),
        (12, "q4_k", 256, 144),
        (13, "q5_k", 256, 176),
        (14, "q6_k", 256, 210),
        (20, "iq4_nl", 32, 18),
        (23, "iq4_xs", 256, 136),
        (39, "mxfp4", 32, 17),
    )
}


_ALL_BLOCK_DTYPES = (*BLOCK_DTYPES, *GGML_DTYPES.values())


def block_dtype_named(
    op: str, dtype: Any, rows: tuple[BlockDType, ...] = _ALL_BLOCK_DTYPES
) -> BlockDType:
    """Return a block-quantized dtype, passed as a BlockDType or by name, as in `"nf4"`.

    Raise DTypeError for anything else, including plain dtypes.
    """
    for row in rows:
        if dtype is row or (isinstance(dtype, str) and dtype == row.name):
            return row
    is_dtype = isinstance(dtype, str | DType | BlockDType)
    kind = repr(dtype) if is_dtype else type(dtype).__name__
    raise DTypeError(
        f"[{op}] dtype must be one of {', '.join(map(str, rows))}: {kind:.80}"
    )


def from_numpy_dtype(numpy_dtype: "np.dtype[Any]") -> DType:
    """Return the DType for a NumPy dtype in native byte order, or raise DTypeError."""
    row = _BY_NUMPY_DTYPE.get(numpy_dtype)
    if row is None:
        names = ", ".join(_BY_NAME)
        raise DTypeError(
            f"[from_numpy] array.dtype must be one of {names}: {numpy_dtype!r}"
        )
    return row


def dtype_named(op: str, dtype: Any) -> DType:
    """Return a dtype, passed as a DType or by name, as in `"bfloat16"`.

    Raise DTypeError for anything else, including block-quantized dtypes.
    """
    if isinstance(dtype, DType):
        return dtype
    row = _BY_NAME.get(dtype) if isinstance(dtype, str) else None
    if row is None:
        kind = (
            repr(dtype) if isinstance(dtype, str | BlockDType) else type(dtype).__name__
        )
        raise DTypeError(f"[{op}] dtype must be one of {', '.join(_BY_NAME)}: {kind:.80}")
    return row


def checked_number(op: str, value: Any, dtype: DType) -> Any:
    """Convert a number to the Python type that matches the kind of `dtype`, unrounded.

    Raise DTypeError if the kind of `dtype` cannot represent the number (a complex number
    for a float dtype, or a float for an integer dtype), and TensorError if an integer is
    out of range.
    """
    try:
        if isinstance(value, str | bytes | np.ndarray) or (
            isinstance(value, bool) and dtype.kind != "bool"
        ):
            raise TypeError
        number: Any = _NUMBERS[dtype.kind](value)
    except (TypeError, ValueError, OverflowError):
        hint = (
            "; dequantize() gives a plain tensor" if hasattr(value, "dequantize") else ""
        )
        if isinstance(value, np.ndarray):
            hint = "; Tensor.from_numpy(array) creates a Tensor"
        raise DTypeError(
            f"[{op}] value must be a number of the kind of {dtype}: "
            f"{type(value).__name__}{hint}"
        ) from None
    if dtype.kind == "int":
        limits = np.iinfo(dtype.numpy_dtype)
        low = limits.min
        high = limits.max
        if not low <= number <= high:
            raise TensorError(
                f"[{op}] value must be in [{low}, {high}] for {dtype}: {number}"
            )
    return number


def checked_scalar(op: str, value: Any, dtype: DType) -> Any:
    """Check a number as `checked_number` does, and round it to a NumPy scalar of `dtype`.

    Floats that are out of range become infinite.
    """
    number = checked_number(op, value, dtype)
    if dtype is float32 and abs(number) < _SAFE:
        return np.float32(number)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(number).astype(dtype.numpy_dtype)[()]
