"""Element types, one row each."""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from .errors import DTypeError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """Describe one element type.

    Args:
        name: what messages and traces show.
        itemsize: bytes per element.
        kind: "float", "int" or "complex".
        is_float: whether elements are real floating-point numbers.
        numpy_dtype: how NumPy reads the elements.
        bits_dtype: the unsigned integer of the same width. Copies that only move elements use it:
            NumPy moves plain integers faster than bfloat16, and no bit pattern of a NaN changes.
    """

    name: str
    itemsize: int
    kind: Literal["float", "int", "complex"]
    is_float: bool
    numpy_dtype: "np.dtype[Any]"
    bits_dtype: "np.dtype[Any]"

    def __repr__(self) -> str:
        return self.name


def _row(name: str, kind: Literal["float", "int", "complex"], numpy_type: Any) -> DType:
    numpy_dtype = np.dtype(numpy_type)
    bits_dtype = np.dtype(f"u{numpy_dtype.itemsize}")
    return DType(name, numpy_dtype.itemsize, kind, kind == "float", numpy_dtype, bits_dtype)


bfloat16 = _row("bfloat16", "float", ml_dtypes.bfloat16)
float16 = _row("float16", "float", np.float16)
float32 = _row("float32", "float", np.float32)
int64 = _row("int64", "int", np.int64)
int32 = _row("int32", "int", np.int32)
uint16 = _row("uint16", "int", np.uint16)
int8 = _row("int8", "int", np.int8)
uint8 = _row("uint8", "int", np.uint8)
complex64 = _row("complex64", "complex", np.complex64)

DTYPES = (bfloat16, float16, float32, int64, int32, uint16, int8, uint8, complex64)
_BY_NUMPY_DTYPE = {row.numpy_dtype: row for row in DTYPES}
# Types hash much faster than dtypes do.
_BY_NUMPY_TYPE = {row.numpy_dtype.type: row for row in DTYPES}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockDType:
    """Describe a block-quantised type: small codes, and a scale for each block of them.

    Such elements have no address of their own, so they make a `QuantizedTensor`, not a `Tensor`.

    Args:
        name: what messages and traces show.
        block_size: elements that share a scale; blocks run over all elements in row-major order.
        codes: type in which codes are stored.
        codes_per_item: of that type.
        scales: type of the scales.
    """

    name: str
    block_size: int
    codes: DType
    codes_per_item: int
    scales: DType

    @property
    def is_float(self) -> bool:
        """Whether elements are real floating-point numbers: not before they are dequantised."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name not in DType.__slots__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise DTypeError(
            f"[{self.name}] dtype must not be block-quantised: only ml.quantize makes such "
            "tensors, and dequantize() gives a plain one"
        )

    def __repr__(self) -> str:
        return self.name


nf4 = BlockDType("nf4", 64, uint8, 2, float32)
# As large as llama.cpp's Q8_0; code times scale is exact in float32.
int8_block = BlockDType("int8_block", 32, int8, 1, bfloat16)

BLOCK_DTYPES = (nf4, int8_block)


def from_numpy_dtype(numpy_dtype: "np.dtype[Any]") -> DType:
    """Find the row of a NumPy dtype.

    Raises:
        DTypeError: there is no such row (also for foreign byte order).
    """
    row = _BY_NUMPY_TYPE.get(numpy_dtype.type) if numpy_dtype.isnative else None
    if row is None:
        row = _BY_NUMPY_DTYPE.get(numpy_dtype)
    if row is None:
        names = ", ".join(known.name for known in DTYPES)
        raise DTypeError(f"[from_numpy] array.dtype must be one of {names}: {numpy_dtype!r}")
    return row
