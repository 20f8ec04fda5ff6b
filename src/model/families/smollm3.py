"""SmolLM3: Llama with some layers that do not rotate and thus ignore positions.

Source: transformers, models/smollm3/modeling_smollm3.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import ml
from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import (
    BIASES,
    WINDOWS,
    ConfigSchema,
    HuggingFaceConfig,
)
from ...checkpoint.params import SIZE, list_of, value_of
from ..args import ModelArgs
from ..errors import mismatch
from ..llama import LlamaAttention, LlamaTransformer, LlamaTransformerBlock
from . import Family

_INTERVAL = 4  # by default, every fourth layer has no RoPE


@dataclass(frozen=True)
class SmolLM3Args(ModelArgs):
    """Llama's sizes and constants, and the layers without RoPE."""

    layers_without_rope: tuple[int, ...] = ()

    @property
    def rotated_layers(self) -> Sequence[int]:
        """Return the layers in which queries and keys are rotated."""
        return [n for n in range(self.n_layers) if n not in self.layers_without_rope]


class SmolLM3Attention(LlamaAttention):
    """Llama's attention with RoPE in only some of the layers."""

    def rotate(self, x: ml.Tensor, rotations: ml.Tensor) -> ml.Tensor:
        """Rotate queries or keys [T, heads, h], or return them unchanged without RoPE."""
        is_rotated = self.layer in self.args.rotated_layers
        return super().rotate(x, rotations) if is_rotated else x


class SmolLM3Block(LlamaTransformerBlock):
    """Llama's layer with SmolLM3's attention."""

    attention_class = SmolLM3Attention


class SmolLM3Transformer(LlamaTransformer):
    """Llama's network with SmolLM3's layers."""

    block_class = SmolLM3Block


class _SmolLM3(Family):
    config = ConfigSchema(
        "SmolLM3ForCausalLM",
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": _INTERVAL,
        },
        rules=WINDOWS
        | BIASES
        | {"no_rope_layers": list_of(0, 1), "no_rope_layer_interval": SIZE},
        per_layer=("no_rope_layers",),
    )
    gguf = GgufSchema("smollm3", "interleaved")
    args_class = SmolLM3Args
    transformer = SmolLM3Transformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        count = value_of(config.values, "num_hidden_layers", 0)
        interval = value_of(config.values, "no_rope_layer_interval", _INTERVAL)
        by_interval = [n % interval for n in range(1, count + 1)]
        rotated = value_of(config.values, "no_rope_layers", by_interval)
        without = tuple(n for n, is_rotated in enumerate(rotated) if not is_rotated)
        return {"layers_without_rope": without}

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        return {"layers_without_rope": _by_interval(config.sizes["n_layers"])}

    def config_keys(self, args: SmolLM3Args) -> dict[str, object]:
        rotated = [int(n in args.rotated_layers) for n in range(args.n_layers)]
        return super().config_keys(args) | {"no_rope_layers": rotated}

    def check_gguf(self, args: SmolLM3Args) -> None:
        """Check that the layers without RoPE are the ones implied by GGUF files."""
        if args.layers_without_rope != _by_interval(args.n_layers):
            rule = "every fourth layer without RoPE, as smollm3 requires in GGUF files"
            layers = ", ".join(map(str, args.layers_without_rope)) or "none"
            raise mismatch("save", rule, f"layers {layers}")


def _by_interval(layer_count: int) -> tuple[int, ...]:
    return tuple(range(_INTERVAL - 1, layer_count, _INTERVAL))


FAMILY = _SmolLM3()
