"""The Llama model: its sizes, its network, its memory, and how it is loaded."""

from .args import LinearRopeScaling, ModelArgs, RopeFactors, RopeScaling
from .context import BatchContext, InferenceContext, SharedContext
from .errors import ModelConfigError, ModelError, NotEnoughMemoryError, PositionError, TokenIdError
from .files import ModelFiles, read_model_files
from .forecast import PREFILL_CHUNK, MemoryForecast, forecast_memory, kv_cache_bytes
from .llama import LlamaTransformer, token_tensor
from .loader import Model, load_model, open_checkpoint
from .quantization import QUANTIZATIONS, QuantizationProgress

__all__ = [
    "PREFILL_CHUNK",
    "QUANTIZATIONS",
    "BatchContext",
    "InferenceContext",
    "LinearRopeScaling",
    "LlamaTransformer",
    "MemoryForecast",
    "Model",
    "ModelArgs",
    "ModelConfigError",
    "ModelError",
    "ModelFiles",
    "NotEnoughMemoryError",
    "PositionError",
    "QuantizationProgress",
    "RopeFactors",
    "RopeScaling",
    "SharedContext",
    "TokenIdError",
    "forecast_memory",
    "kv_cache_bytes",
    "load_model",
    "open_checkpoint",
    "read_model_files",
    "token_tensor",
]
