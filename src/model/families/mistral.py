"""Mistral: Llama with a window in all layers, or in none."""

from collections.abc import Mapping
from typing import Any, ClassVar

from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.params import SIZE, value_of
from ..args import ModelArgs
from ..llama import LlamaTransformer, LlamaTransformerBlock
from ..windows import WindowArgs, WindowAttention
from . import Family
from .llama import FAMILY as LLAMA


class MistralBlock(LlamaTransformerBlock):
    """Llama's layer with a window."""

    attention_class = WindowAttention


class MistralTransformer(LlamaTransformer):
    """Llama's network with Mistral's layers."""

    block_class = MistralBlock


class MistralFamily(Family):
    """The files and the network of Mistral.

    llama.cpp ignores the window of Mistral's files. Therefore, the context in GGUF files
    is limited to the window, within which the results are the same.
    """

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
    args_class: ClassVar[type[ModelArgs]] = WindowArgs
    transformer: ClassVar[type[LlamaTransformer]] = MistralTransformer

    def reads_gguf(self, keys: Mapping[str, object]) -> bool:
        """Return whether a file has no experts."""
        return LLAMA.reads_gguf(keys)

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of the window, which every layer has or none."""
        window: int | None = value_of(config.values, "sliding_window", None)
        if window is None:
            return {}
        count = value_of(config.values, "num_hidden_layers", 0)
        return {"window": window, "window_layers": tuple(range(count))}

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        """Return the metadata keys that differ from Llama's."""
        longest = args.max_context_length
        return {"context_length": min(longest, args.window or longest)}


FAMILY = MistralFamily()
