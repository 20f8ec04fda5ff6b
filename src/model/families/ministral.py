"""Ministral 8B: Mistral with a window in some layers.

Source: transformers, models/ministral/modeling_ministral.py.
"""

from typing import Any

from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.params import SIZE, value_of
from . import LAYER_TYPES, layer_windows
from .mistral import MistralFamily


class _Ministral(MistralFamily):
    config = ConfigSchema(
        "MinistralForCausalLM",
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        rules={"sliding_window": SIZE, "layer_types": LAYER_TYPES},
        per_layer=("layer_types",),
    )

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of the windows, which all layers have by default."""
        count = value_of(config.values, "num_hidden_layers", 0)
        has_window = value_of(config.values, "sliding_window", None) is not None
        return layer_windows(config, tuple(range(count)) if has_window else ())


FAMILY = _Ministral()
