"""OLMoE: Llama with experts, and normalized queries and keys.

The norms are over all queries and over all keys of a token, as in OLMo 2.

Source: transformers, models/olmoe/modeling_olmoe.py; llama.cpp, src/models/olmoe.cpp.
"""

from typing import Any

from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import (
    ATTENTION_BIAS,
    ConfigSchema,
    HuggingFaceConfig,
)
from ...checkpoint.names import with_experts
from ...checkpoint.params import off
from ..args import ModelArgs
from ..errors import mismatch
from ..experts import (
    EXPERT_KEYS,
    GGUF_EXPERTS,
    MLP_EXPERTS,
    NORM_KEYS,
    MixtureOfExperts,
    gguf_expert_fields,
    gguf_expert_keys,
    normalized_expert_fields,
    normalized_expert_keys,
)
from ..llama import LlamaTransformer, LlamaTransformerBlock
from . import Family
from .olmo2 import ROW_NORMS, Olmo2Attention


class OlmoeBlock(LlamaTransformerBlock):
    """Llama's layer with OLMo 2's attention, and with experts."""

    attention_class = Olmo2Attention
    feed_forward_class = MixtureOfExperts


class OlmoeTransformer(LlamaTransformer):
    """Llama's network with OLMoE's layers."""

    block_class = OlmoeBlock


class _Olmoe(Family):
    config = ConfigSchema(
        "OlmoeForCausalLM",
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        rules=ATTENTION_BIAS
        | EXPERT_KEYS
        | NORM_KEYS
        | {"clip_qkv": off("clipped queries, keys and values")},
    )
    gguf = GgufSchema(
        "olmoe",
        "halves",
        rules=GGUF_EXPERTS,
        biases=(),
        has_own_output=True,
        heads_fill_dim=True,
    )
    layer_rows = with_experts("mlp.gate", MLP_EXPERTS, *ROW_NORMS)
    transformer = OlmoeTransformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        return normalized_expert_fields(config.values, default_count=64)

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        return gguf_expert_fields(config.given) | {"has_shares_of_all": True}

    def config_keys(self, args: ModelArgs) -> dict[str, object]:
        return normalized_expert_keys(args) | {"attention_bias": "wq" in args.biases}

    def gguf_keys(self, args: ModelArgs) -> dict[str, Any]:
        return gguf_expert_keys(args)

    def check_gguf(self, args: ModelArgs) -> None:
        if args.n_kv_heads != args.n_heads:
            rule = f"n_kv_heads = n_heads {args.n_heads}, as in GGUF files"
            raise mismatch("save", rule, args.n_kv_heads)
        if not args.has_shares_of_all:
            raise mismatch("save", "norm_topk_prob false, as in GGUF files", "true")


FAMILY = _Olmoe()
