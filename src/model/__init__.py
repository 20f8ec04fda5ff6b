"""The Llama model: configuration, network, KV cache and loading."""

from importlib import import_module
from typing import TYPE_CHECKING

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
    InterventionError,
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

if TYPE_CHECKING:
    from .adapters import LoadedAdapter, load_adapter
    from .intervened import intervene
    from .interventions import Intervention, Interventions

__all__ = [
    "PREFILL_CHUNK",
    "QUANTIZATIONS",
    "BatchContext",
    "CacheMemory",
    "InferenceContext",
    "Intervention",
    "InterventionError",
    "Interventions",
    "LinearRopeScaling",
    "LlamaTransformer",
    "LoadedAdapter",
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
    "intervene",
    "kv_cache_bytes",
    "load_adapter",
    "load_model",
    "token_list",
    "token_tensor",
]
_ON_DEMAND = {
    "Intervention": "interventions",
    "Interventions": "interventions",
    "LoadedAdapter": "adapters",
    "intervene": "intervened",
    "load_adapter": "adapters",
}


def __getattr__(name: str) -> object:
    """Import a module lazily, when one of its names is first accessed."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ON_DEMAND[name]}", __name__), name)
