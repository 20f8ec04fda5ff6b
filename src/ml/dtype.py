"""Element types, one row each: the only place that lists the dtypes and their sizes.

`python -m tools.write_dtypes` generates `csrc/dtypes.h` from these rows, so the C numbers
and sizes are defined only here.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import ml_dtypes
import numpy as np

from .errors import DTypeError, TensorError
from .kernels import lib

# The names that `ml` exports.
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

# Converters to Python numbers, by the kind of a dtype.
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": operator.index,
    "complex": complex,
    "bool": lambda x: complex(x) != 0,
}
# Below this value, rounding to float32 neither overflows nor warns.
_SAFE = 1e38


def _code(name: str) -> int:
    """Return the C number of a type, or -1 if the kernels do not support it."""
    return int(getattr(lib, f"TYPE_{name.upper()}", -1))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """Describe one element type.

    Args:
        name: The name in messages and traces.
        itemsize: Bytes per element.
        kind: "float", "int", "complex" or "bool".
        is_float: Whether elements are real floating-point numbers that the kernels
            support.
        numpy_dtype: The dtype of the elements in NumPy.
        bits_dtype: The unsigned integer of the same width. Copies that only move elements
            use it: NumPy moves plain integers faster than bfloat16, and no bit pattern of
            a NaN changes.
        product_type: "bfloat16" or "float32": the narrower of the two that represents
            every element; products with such a weight run in it. Empty if there are no
            products.
        file_name: The name in safetensors files; empty if they do not have the type, or
            it is not read from them.
        code: The C number of the type, `TYPE_NAME` of csrc/dtypes.h, or -1 if the kernels
            do not support it.
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
        return dtype_named, ("unpickle", self.name)  # a copy is the same object


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
    """Describe a block-quantized type: small codes, and a scale for each block of them.

    Such elements have no separate addresses, so they make a `QuantizedTensor`, not a
    `Tensor`.

    Args:
        name: The name in messages and traces.
        block_size: Elements of a block; blocks run over all elements in row-major order.
        codes: Type of the items that store codes, or whole blocks.
        codes_per_item: Codes per such item; 0 for blocks that contain their scales.
        scales: Type of the scales.
        double_scales: Type of scales that are themselves codes, or None.
        bytes_with_scales: Bytes of a block that contains its scales with its codes, as in
            GGUF files; rows are then whole blocks. 0 for separate scales.
    """

    name: str
    block_size: int
    codes: DType
    codes_per_item: int
    scales: DType
    double_scales: DType | None = None
    bytes_with_scales: int = 0
    is_float: ClassVar[bool] = False  # elements are not floats until dequantized

    @property
    def code_bytes(self) -> int:
        """The bytes of a block's codes, including scales that are inside the block."""
        return (
            self.bytes_with_scales
            or self.bytes_of(self.block_size) - self.scales.itemsize
        )

    @property
    def block_bytes(self) -> int:
        """The bytes of a block with its scale."""
        return self.bytes_of(self.block_size)

    @property
    def code(self) -> int:
        """The C number of the type, `TYPE_NAME` of csrc/dtypes.h."""
        return _code(self.name)

    def bytes_of(self, size: int) -> int:
        """Compute the bytes of `size` elements with their scales.

        The last block may be short.
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
        """The C number of the type with double scales, or -1."""
        return _code(f"{self.name}_double")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return block_dtype_named, ("unpickle", self.name)  # a copy is the same object


nf4 = BlockDType("nf4", 64, uint8, 2, float32, uint8)
# The same size as llama.cpp's Q8_0; code times scale is exact in float32.
int8_block = BlockDType("int8_block", 32, int8, 1, bfloat16)

BLOCK_DTYPES = (nf4, int8_block)
# The formats of GGUF files: number in the file, name, elements and bytes of a block.
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
    """Return a block-quantized dtype, given as itself or by its name such as `"nf4"`.

    Raise DTypeError for anything else, also for a plain dtype.
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
    """Return the row of a NumPy dtype, or raise DTypeError (also for byte order)."""
    row = _BY_NUMPY_DTYPE.get(numpy_dtype)
    if row is None:
        names = ", ".join(_BY_NAME)
        raise DTypeError(
            f"[from_numpy] array.dtype must be one of {names}: {numpy_dtype!r}"
        )
    return row


def dtype_named(op: str, dtype: Any) -> DType:
    """Return a dtype, given as itself or by its name such as `"bfloat16"`.

    Raise DTypeError for anything else, also for a block-quantized dtype.
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
    """Return a number as Python's number of the kind of `dtype`, without rounding.

    Raise DTypeError for a number of another kind (a complex into a float, a float into an
    int), and TensorError for an integer beyond the range.
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
            hint = "; Tensor.from_numpy(array) makes a Tensor"
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

    Floats beyond the range become infinite.
    """
    number = checked_number(op, value, dtype)
    if dtype is float32 and abs(number) < _SAFE:
        return np.float32(number)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(number).astype(dtype.numpy_dtype)[()]
