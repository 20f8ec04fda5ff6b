"""The Llama model: its sizes, its network, its memory, and how it is loaded."""

from ..ml.memory import available_memory, readable_bytes
from .args import LinearRopeScaling, ModelArgs, RopeScaling
from .context import InferenceContext, check_context_fits, kv_cache_bytes
from .errors import (
    ModelConfigError,
    ModelError,
    NotEnoughMemoryError,
    PositionError,
    TokenIdError,
)
from .forecast import PREFILL_CHUNK, MemoryForecast, forecast_memory
from .layout import missing_tokenizer
from .llama import LlamaTransformer, token_tensor
from .loader import Model, load_model
from .quantization import QUANTIZATIONS, QuantizationProgress
from .saving import SaveError, save_quantized

__all__ = [
    "PREFILL_CHUNK",
    "QUANTIZATIONS",
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
    "RopeScaling",
    "SaveError",
    "TokenIdError",
    "available_memory",
    "check_context_fits",
    "forecast_memory",
    "kv_cache_bytes",
    "load_model",
    "missing_tokenizer",
    "readable_bytes",
    "save_quantized",
    "token_tensor",
]
