"""Granite 3: Llama with four constant scaling factors.

Source: transformers, models/granite/modeling_granite.py.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from ... import ml
from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import BIASES, ConfigSchema, HuggingFaceConfig
from ...checkpoint.params import Rule, number_in, one_of
from ..args import ModelArgs
from ..llama import (
    LlamaAttention,
    LlamaFeedForward,
    LlamaTransformer,
    LlamaTransformerBlock,
)
from . import Family
from .llama import FAMILY as LLAMA

# The fields of `GraniteArgs`, which are also keys in `config.json`, and their metadata
# keys in GGUF files.
_GGUF_NAMES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
MULTIPLIERS: dict[str, Rule] = dict.fromkeys(_GGUF_NAMES, number_in(1e-6, 1e6))
"""The rules for the keys of the scaling factors in `config.json`."""
GRANITE_RULES = BIASES | MULTIPLIERS
GRANITE_GGUF_RULES: dict[str, Rule] = {
    **dict.fromkeys(_GGUF_NAMES.values(), number_in(0, 1e6)),
    "expert_shared_feed_forward_length": one_of(0),
}


@dataclass(frozen=True)
class GraniteArgs(ModelArgs):
    """Llama's sizes and constants, and the scaling factors.

    Attributes:
        embedding_multiplier: Factor applied to the embeddings.
        attention_multiplier: Factor applied to the attention scores. None for 1/sqrt(h).
        residual_multiplier: Factor applied to each term added to the residual stream.
        logits_scaling: Divisor of the logits.
    """

    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = None
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0

    @property
    def score_divisor(self) -> float:
        """Return the divisor of the attention scores before the softmax."""
        if self.attention_multiplier is None:
            return super().score_divisor
        return 1 / self.attention_multiplier


class GraniteAttention(LlamaAttention):
    """Llama's attention with a scaled result."""

    args: GraniteArgs

    def project(self, output: ml.Tensor) -> ml.Tensor:
        """Project the output of all heads [T, H*h] and scale it: float32 [T, D]."""
        return scaled(super().project(output), self.args.residual_multiplier)


class GraniteFeedForward(LlamaFeedForward):
    """Llama's feed-forward with a scaled result."""

    args: GraniteArgs

    def project(self, hidden: ml.Tensor) -> ml.Tensor:
        """Project hidden [T, F] to model dimension and scale it: float32 [T, D]."""
        return scaled(super().project(hidden), self.args.residual_multiplier)


class GraniteBlock(LlamaTransformerBlock):
    """Llama's layer with scaled attention and feed-forward results."""

    attention_class: ClassVar[type[GraniteAttention]] = GraniteAttention
    feed_forward_class: ClassVar[type[LlamaFeedForward]] = GraniteFeedForward


class GraniteTransformer(LlamaTransformer):
    """Llama's network with Granite's layers, scaled embeddings and divided logits."""

    args: GraniteArgs
    block_class: ClassVar[type[GraniteBlock]] = GraniteBlock

    def embed(self, ids: ml.Tensor) -> ml.Tensor:
        """Look up and scale the embeddings of token ids [T]: float32 [T, D]."""
        return scaled(super().embed(ids), self.args.embedding_multiplier)

    def logits(self, x: ml.Tensor) -> ml.Tensor:
        """Return the scaled logits [T, V] for normalized rows x [T, D]."""
        logits = super().logits(x)
        scaling = self.args.logits_scaling
        return logits if scaling == 1 else ml.div(logits, scaling)


def scaled(x: ml.Tensor, factor: float) -> ml.Tensor:
    """Return x times a factor, or x itself if the factor is 1."""
    return x if factor == 1 else ml.multiply(x, factor)


class GraniteFamily(Family):
    """The files and the network of Granite 3."""

    config = ConfigSchema(
        "GraniteForCausalLM",
        defaults={"attention_multiplier": 1.0},
        rules=GRANITE_RULES,
    )
    gguf = GgufSchema(
        "granite",
        "interleaved",
        rules={
            **GRANITE_GGUF_RULES,
            "rope.scaling.finetuned": one_of(True),  # false disables RoPE in llama.cpp
        },
        biases=LLAMA.gguf.biases,
        has_rope_factors=True,
    )
    args_class: ClassVar[type[ModelArgs]] = GraniteArgs
    transformer: ClassVar[type[LlamaTransformer]] = GraniteTransformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of the factors from the keys in `config.json`."""
        values: Any = config.values
        return {name: float(values[name]) for name in _GGUF_NAMES if values.get(name)}

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        """Return the fields of the factors from the keys in a GGUF file."""
        values: Any = config.given  # 0 means that there is no factor
        return {
            name: float(values[key])
            for name, key in _GGUF_NAMES.items()
            if values.get(key)
        }

    def config_keys(self, args: Any) -> dict[str, object]:
        """Return the `config.json` keys that differ from Llama's."""
        return super().config_keys(args) | {
            name: getattr(args, name) for name in _GGUF_NAMES
        }

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        """Return the metadata keys of the factors."""
        values = vars(args) | {"attention_multiplier": 1 / args.score_divisor}
        return {key: float(values[name]) for name, key in _GGUF_NAMES.items()}


FAMILY = GraniteFamily()
