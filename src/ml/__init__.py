"""The tensor library: dtypes, the Tensor, and the ops on it.

It imports nothing else of the package.
"""

from .dtype import (
    DTYPES,
    DType,
    bfloat16,
    complex64,
    float16,
    float32,
    int32,
    uint8,
    uint16,
)
from .errors import (
    DTypeError,
    IndexOutOfRangeError,
    LlamaBoltsError,
    ShapeError,
    TensorError,
    TensorMemoryError,
)
from .storage import Storage
from .tensor import Tensor

__all__ = [
    "DTYPES",
    "DType",
    "DTypeError",
    "IndexOutOfRangeError",
    "LlamaBoltsError",
    "ShapeError",
    "Storage",
    "Tensor",
    "TensorError",
    "TensorMemoryError",
    "bfloat16",
    "complex64",
    "float16",
    "float32",
    "int32",
    "uint8",
    "uint16",
]
