"""Mixtral 8x7B and 8x22B: Mistral with experts in every layer.

Source: transformers, models/mixtral/modeling_mixtral.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...checkpoint.gguf_config import GgufConfig
from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.names import expert_rows, with_experts
from ...checkpoint.params import ANY, SIZE
from ..experts import (
    EXPERT_KEYS,
    GGUF_EXPERTS,
    MixtureOfExperts,
    expert_fields,
    gguf_expert_fields,
    gguf_expert_keys,
)
from .mistral import MistralBlock, MistralFamily, MistralTransformer


class MixtralBlock(MistralBlock):
    """Mistral's layer with experts."""

    feed_forward_class = MixtureOfExperts


class MixtralTransformer(MistralTransformer):
    """Mistral's network with experts."""

    block_class = MixtralBlock


class _Mixtral(MistralFamily):
    config = ConfigSchema(
        "MixtralForCausalLM",
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_experts_per_tok": 2,
        },
        rules=EXPERT_KEYS | {"sliding_window": SIZE, "router_jitter_noise": ANY},
    )
    gguf = replace(MistralFamily.gguf, rules=GGUF_EXPERTS, biases=())
    layer_rows = with_experts(
        "block_sparse_moe.gate",
        expert_rows(
            "block_sparse_moe.experts.{expert}.w1",
            "block_sparse_moe.experts.{expert}.w2",
            "block_sparse_moe.experts.{expert}.w3",
        ),
    )
    transformer = MixtralTransformer

    def reads_gguf(self, keys: Mapping[str, object]) -> bool:
        return bool(keys.get("llama.expert_count"))

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        values: Any = config.values
        return super().fields_of_config(config) | expert_fields(values, default_count=8)

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        return gguf_expert_fields(config.given)

    def config_keys(self, args: Any) -> dict[str, object]:
        return {
            "num_local_experts": args.n_experts,
            "num_experts_per_tok": args.n_active_experts,
            "sliding_window": args.window,
        }

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        return super().gguf_keys(args) | gguf_expert_keys(args)


FAMILY = _Mixtral()
