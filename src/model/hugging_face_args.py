"""The sizes and constants of a model, from Hugging Face's configuration and its tensors."""

from collections.abc import Mapping

from .. import ml
from ..checkpoint import HuggingFaceConfig
from .args import LinearRopeScaling, ModelArgs, RopeScaling, activation_dtype, checked_rope_factor
from .errors import ModelConfigError


def hugging_face_args(
    config: HuggingFaceConfig,
    tensors: Mapping[str, ml.Weight],
    rope_scaling_factor: float | None = None,
) -> ModelArgs:
    """Put together what `config.json` says and what the tensors say.

    Args:
        config: The configuration, checked.
        tensors: The weights by Meta's names, names and shapes checked.
        rope_scaling_factor: Replaces the factor of a scaled RoPE.

    Raises:
        ModelConfigError: The parts contradict each other.
    """
    return ModelArgs(
        dim=config.hidden_size,
        n_layers=config.layers,
        n_heads=config.heads,
        n_kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        ffn_dim=config.intermediate_size,
        vocab_size=config.vocab_size,
        norm_eps=config.norm_eps,
        rope_theta=config.rope.theta,
        rope_scaling=_rope_scaling(config, rope_scaling_factor),
        rope_pairs="halves",
        max_context_length=config.context_length,
        dtype=activation_dtype(tensors),
    )


def _rope_scaling(
    config: HuggingFaceConfig, override: float | None
) -> RopeScaling | LinearRopeScaling | None:
    """Return the scaling that the configuration names, with its factor or the overriding one."""
    rope = config.rope
    if rope.kind == "default":
        if override is not None:
            raise ModelConfigError(
                "rope_scaling_factor: expected a model whose config.json scales RoPE, got one that "
                "does not"
            )
        return None
    factor = rope.factor if override is None else checked_rope_factor(override)
    if rope.kind == "linear":
        return LinearRopeScaling(factor)
    return RopeScaling(
        factor, rope.low_freq_factor, rope.high_freq_factor, rope.original_context_length
    )
