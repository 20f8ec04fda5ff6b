"""Mistral 7B: Llama with a sliding window, which limits the context."""

from typing import Any

from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.params import SIZE
from . import Family, window_fields
from .llama import FAMILY as LLAMA


class _Mistral(Family):
    config = ConfigSchema(
        "MistralForCausalLM",
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        rules={"sliding_window": SIZE},
    )
    gguf = LLAMA.gguf  # the files use Llama's architecture

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        return window_fields(config)


FAMILY = _Mistral()
