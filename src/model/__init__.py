"""The Llama model: configuration, network, KV cache and loading."""

from .args import (
    LinearRopeScaling,
    ModelArgs,
    RopeFactors,
    RopeScaling,
    YarnRopeScaling,
)
from .context import (
    BatchContext,
    CacheMemory,
    InferenceContext,
    token_list,
    token_tensor,
)
from .errors import (
    ModelConfigError,
    ModelError,
    NotEnoughMemoryError,
    PositionError,
    TokenIdError,
)
from .forecast import PREFILL_CHUNK, MemoryForecast, kv_cache_bytes
from .llama import LlamaTransformer
from .loader import Model, forecast_memory, load_model
from .quantization import QUANTIZATIONS, QuantizationProgress
from .sources import Source, find_source

__all__ = [
    "PREFILL_CHUNK",
    "QUANTIZATIONS",
    "BatchContext",
    "CacheMemory",
    "InferenceContext",
    "LinearRopeScaling",
    "LlamaTransformer",
    "MemoryForecast",
    "Model",
    "ModelArgs",
    "ModelConfigError",
    "ModelError",
    "NotEnoughMemoryError",
    "PositionError",
    "QuantizationProgress",
    "RopeFactors",
    "RopeScaling",
    "Source",
    "TokenIdError",
    "YarnRopeScaling",
    "find_source",
    "forecast_memory",
    "kv_cache_bytes",
    "load_model",
    "token_list",
    "token_tensor",
]
