"""Granite 3's mixtures of experts: Granite with experts in every layer.

One stored tensor contains the gate and up matrices of all experts, and another one the
down matrices.

Source: transformers, models/granitemoe/modeling_granitemoe.py.
"""

from dataclasses import replace
from typing import Any

from ... import ml
from ...checkpoint.gguf_config import GgufConfig
from ...checkpoint.hugging_face_config import (
    ATTENTION_BIAS,
    ConfigSchema,
    HuggingFaceConfig,
)
from ...checkpoint.names import joined_expert_rows, with_experts
from ..experts import (
    EXPERT_KEYS,
    GGUF_EXPERTS,
    MixtureOfExperts,
    expert_fields,
    gguf_expert_fields,
    gguf_expert_keys,
)
from .granite import (
    MULTIPLIERS,
    GraniteArgs,
    GraniteBlock,
    GraniteFamily,
    GraniteTransformer,
    scaled,
)


class GraniteExperts(MixtureOfExperts):
    """Experts with a scaled result."""

    args: GraniteArgs

    def project(self, hidden: ml.Tensor, *choice: ml.Tensor) -> ml.Tensor:
        """Project hidden [T*A, F], add and scale the results: float32 [T, D]."""
        return scaled(super().project(hidden, *choice), self.args.residual_multiplier)


class GraniteExpertsBlock(GraniteBlock):
    """Granite's layer with experts."""

    feed_forward_class = GraniteExperts


class GraniteExpertsTransformer(GraniteTransformer):
    """Granite's network with experts."""

    block_class = GraniteExpertsBlock


class _GraniteMoe(GraniteFamily):
    config = ConfigSchema(
        "GraniteMoeForCausalLM",
        defaults={
            "attention_multiplier": 1.0,
            "num_experts_per_tok": 2,
        },
        rules=ATTENTION_BIAS | EXPERT_KEYS | MULTIPLIERS,
    )
    gguf = replace(
        GraniteFamily.gguf,
        architecture="granitemoe",
        rules={**GraniteFamily.gguf.rules, **GGUF_EXPERTS},
        biases=(),
    )
    layer_rows = with_experts(
        "block_sparse_moe.router.layer",
        joined_expert_rows(
            "block_sparse_moe.input_linear", "block_sparse_moe.output_linear"
        ),
    )
    transformer = GraniteExpertsTransformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        values: Any = config.values
        return super().fields_of_config(config) | expert_fields(values, default_count=8)

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        return super().fields_of_gguf(config) | gguf_expert_fields(config.given)

    def config_keys(self, args: GraniteArgs) -> dict[str, object]:
        keys = super().config_keys(args)
        del keys["mlp_bias"]
        return keys | {
            "num_local_experts": args.n_experts,
            "num_experts_per_tok": args.n_active_experts,
        }

    def gguf_keys(self, args: GraniteArgs) -> dict[str, Any]:
        return super().gguf_keys(args) | gguf_expert_keys(args)


FAMILY = _GraniteMoe()
