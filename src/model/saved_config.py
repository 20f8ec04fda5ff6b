"""Create a `config.json` for a model that is not in Hugging Face's layout."""

import contextlib
from dataclasses import replace

from ..tokenizer import Tokenizer, TokenizerError
from .args import (
    LinearRopeScaling,
    ModelArgs,
    RopeFactors,
    RopeScaling,
    YarnRopeScaling,
)
from .errors import mismatch
from .families import FAMILIES, yarn_keys
from .rope import rope_factors

_KNOWN_ROPE_FACTORS = (8.0, 32.0)  # Llama 3.1; Llama 3.2 1B and 3B


def hugging_face_config(
    args: ModelArgs, tokenizer: Tokenizer | None, dtype: str, kind: str
) -> dict[str, object]:
    """Return a `config.json` that describes the model as if its output were tied.

    Args:
        args: The model's sizes and constants.
        tokenizer: If not None, determines `bos_token_id` and `eos_token_id`.
        dtype: The dtype of the weights.
        kind: The `model_type`.
    """
    family = FAMILIES[kind]
    keys = family.config_keys(args)
    config: dict[str, object] = {
        "architectures": [family.config.architecture],
        "model_type": kind,
        "hidden_size": args.dim,
        "intermediate_size": args.ffn_dim,
        "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads,
        "num_key_value_heads": args.n_kv_heads,
        "head_dim": args.head_dim,
        "vocab_size": args.vocab_size,
        "rms_norm_eps": args.norm_eps,
        "hidden_act": "silu",
        "max_position_embeddings": args.max_context_length,
        "rope_theta": args.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": dtype,
    }
    scaling = args.rope_scaling
    if isinstance(scaling, RopeScaling):
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context_length,
        }
    elif isinstance(scaling, LinearRopeScaling):
        config["rope_scaling"] = {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, YarnRopeScaling):
        config["rope_scaling"] = yarn_keys(scaling)
    config |= keys
    if tokenizer is not None:
        with contextlib.suppress(TokenizerError):  # Qwen has no begin-of-text token
            config["bos_token_id"] = tokenizer.bos_id
        config["eos_token_id"] = sorted(tokenizer.stop_ids)
    return config


def with_named_scaling(args: ModelArgs) -> ModelArgs:
    """Return args whose RoPE scaling can be expressed in `config.json`.

    Raises ModelConfigError if the factors of a GGUF file differ from the factors of Llama
    3.1 and 3.2.
    """
    if not isinstance(args.rope_scaling, RopeFactors):
        return args
    for factor in _KNOWN_ROPE_FACTORS:
        named = replace(args, rope_scaling=RopeScaling(factor))
        factors = rope_factors(named)
        assert factors is not None
        if tuple(factors.numpy().tolist()) == args.rope_scaling.factors:
            return named
    raise mismatch("save", "rope_freqs.weight of Llama 3.1 or 3.2", "other factors")
