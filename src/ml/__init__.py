"""The tensor library: dtypes, the Tensor class, and tensor ops.

Except for an installation hint in one error, it does not depend on the rest of the
package.
"""

import typing

from . import dtype, ops
from .adapted import Adapter, LowRankPair, ScaledAdapters, adapted_rows
from .dtype import *  # noqa: F403 (its `__all__` lists them)
from .dtype import bool_ as bool  # noqa: A004 (the field's word)
from .errors import (
    DTypeError,
    IndexOutOfRangeError,
    LlamaBoltsError,
    ShapeError,
    TensorError,
    TensorMemoryError,
    TensorTypeError,
)
from .kernels import build_info, get_num_threads, set_num_threads
from .key_value_cache import (
    BLOCK_POSITIONS,
    CACHE_Q8_0,
    KeyValueCache,
    Positions,
    Spans,
)
from .layout import name_sizes
from .op import OpCall, subscribe, unsubscribe
from .ops import *  # noqa: F403 (ops/__init__.py lists them)
from .ops.experts import Activation, ExpertWeights
from .quantized import (
    NestedScales,
    QuantizedTensor,
    Weight,
    dynamic_map,
    nf4_code,
    quantize,
)
from .tensor import Tensor

__all__ = [
    "BLOCK_POSITIONS",
    "CACHE_Q8_0",
    "Activation",
    "Adapter",
    "DTypeError",
    "ExpertWeights",
    "IndexOutOfRangeError",
    "KeyValueCache",
    "LlamaBoltsError",
    "LowRankPair",
    "NestedScales",
    "OpCall",
    "Positions",
    "QuantizedTensor",
    "ScaledAdapters",
    "ShapeError",
    "Spans",
    "Tensor",
    "TensorError",
    "TensorMemoryError",
    "TensorTypeError",
    "Weight",
    "adapted_rows",
    "bool",
    "build_info",
    "dynamic_map",
    "get_num_threads",
    "name_sizes",
    "nf4_code",
    "quantize",
    "set_num_threads",
    "subscribe",
    "unsubscribe",
]
__all__ += dtype.__all__
__all__ += ops.__all__

if not typing.TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        from .hints import missing_name  # only needed for errors

        raise AttributeError(missing_name(name))
