"""Qwen3's mixtures of experts: Qwen3 with experts in every layer.

Source: transformers, models/qwen3_moe/modeling_qwen3_moe.py; llama.cpp,
src/models/qwen3moe.cpp.
"""

from typing import Any

from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import (
    ATTENTION_BIAS,
    ConfigSchema,
    HuggingFaceConfig,
)
from ...checkpoint.names import with_experts
from ...checkpoint.params import SIZE, off, one_of, value_of
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
from . import Family
from .qwen3 import HEAD_NORMS, Qwen3Block, Qwen3Transformer

_GGUF_DIM = "expert_feed_forward_length"


class Qwen3ExpertsBlock(Qwen3Block):
    """Qwen3's layer with experts."""

    feed_forward_class = MixtureOfExperts


class Qwen3ExpertsTransformer(Qwen3Transformer):
    """Qwen3's network with experts."""

    block_class = Qwen3ExpertsBlock


class _Qwen3Moe(Family):
    config = ConfigSchema(
        "Qwen3MoeForCausalLM",
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        rules=ATTENTION_BIAS
        | EXPERT_KEYS
        | NORM_KEYS
        | {
            "sliding_window": SIZE,  # not used without the next key
            "use_sliding_window": one_of(False),
            "moe_intermediate_size": SIZE,
            "decoder_sparse_step": one_of(1),
            "mlp_only_layers": off("layers without experts"),
        },
    )
    gguf = GgufSchema(
        "qwen3moe", "halves", rules=GGUF_EXPERTS | {_GGUF_DIM: SIZE}, biases=()
    )
    layer_rows = with_experts("mlp.gate", MLP_EXPERTS, *HEAD_NORMS)
    transformer = Qwen3ExpertsTransformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        values: Any = config.values
        return {
            **normalized_expert_fields(values, default_count=128),
            "ffn_dim": values["moe_intermediate_size"],
        }

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        default = config.sizes["ffn_dim"]
        return gguf_expert_fields(config.given) | {
            "ffn_dim": value_of(config.given, _GGUF_DIM, default)
        }

    def config_keys(self, args: ModelArgs) -> dict[str, object]:
        return normalized_expert_keys(args) | {
            "moe_intermediate_size": args.ffn_dim,
            "attention_bias": "wq" in args.biases,
        }

    def gguf_keys(self, args: ModelArgs) -> dict[str, Any]:
        return gguf_expert_keys(args) | {_GGUF_DIM: args.ffn_dim}

    def check_gguf(self, args: ModelArgs) -> None:
        if args.has_shares_of_all:
            raise mismatch("save", "norm_topk_prob true, as in GGUF files", "false")


FAMILY = _Qwen3Moe()
