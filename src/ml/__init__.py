"""The tensor library: dtypes, the Tensor, and the ops on it.

It imports nothing else of the package but the trace, to which its ops report.
"""

from .. import trace as _trace
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
from .native import build_info, get_num_threads, set_num_threads
from .ops import (
    add,
    add_scalar,
    arange,
    argmax,
    concatenate,
    div_scalar,
    full,
    full_like,
    get_rows,
    linear_transformation,
    matmul,
    mean,
    multiply,
    ones,
    ones_like,
    outer,
    polar,
    pow,  # noqa: A004 (the field's word)
    repeat_heads,
    rms_norm,
    rotary_embedding,
    rsqrt,
    silu,
    softmax,
    swiglu,
    triu,
    zeros,
    zeros_like,
)
from .reporting import report_ops_to
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
    "add",
    "add_scalar",
    "arange",
    "argmax",
    "bfloat16",
    "build_info",
    "complex64",
    "concatenate",
    "div_scalar",
    "float16",
    "float32",
    "full",
    "full_like",
    "get_num_threads",
    "get_rows",
    "int32",
    "linear_transformation",
    "matmul",
    "mean",
    "multiply",
    "ones",
    "ones_like",
    "outer",
    "polar",
    "pow",
    "repeat_heads",
    "report_ops_to",
    "rms_norm",
    "rotary_embedding",
    "rsqrt",
    "set_num_threads",
    "silu",
    "softmax",
    "swiglu",
    "triu",
    "uint8",
    "uint16",
    "zeros",
    "zeros_like",
]

_trace.add_reporter(report_ops_to)
