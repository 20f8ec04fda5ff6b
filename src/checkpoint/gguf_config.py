"""The keys of a GGUF file that say what a model computes, checked as `params.py` says.

Only those of the architecture do; keys outside of it describe the file.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `src/llama-arch.cpp`, `src/llama-model.cpp` and
`convert_hf_to_gguf.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import mismatch
from .gguf import GgufFile, GgufValue
from .params import (
    ANY,
    SIZE,
    Rule,
    check_divides,
    check_object,
    number_in,
    one_of,
    rules_of,
    sizes_of,
    value_of,
)

RopePairs = Literal["interleaved", "halves"]

ARCHITECTURES: Mapping[str, RopePairs] = {
    **dict.fromkeys(("llama", "smollm3", "granite"), "interleaved"),
    **dict.fromkeys(("qwen2", "qwen3", "olmo2"), "halves"),
}
"""The architectures that are loaded, and which rows of q and k are rotated together."""

GRANITE_SCALES = {
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
}  # fmt: skip
"""The factors that only Granite has, by their names in `ModelArgs`; 0 is none."""

GGUF_KEYS = {
    "vocab_size": "vocab_size", "max_context_length": "context_length", "dim": "embedding_length",
    "n_layers": "block_count", "ffn_dim": "feed_forward_length", "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
}  # fmt: skip
"""The keys of sizes and constants, by their names in `ModelArgs`."""

RULES: dict[str, Rule] = {
    **rules_of(GGUF_KEYS),
    **dict.fromkeys(("attention.value_length", "rope.dimension_count"), SIZE),
    "rope.scaling.type": one_of("none", "linear"),
    "rope.scaling.factor": number_in(1, 1e6),
    # Other values of these change the result in ways that are not supported.
    **dict.fromkeys(("expert_count", "expert_used_count"), one_of(0)),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias"), one_of(0)),
    "attention.causal": one_of(True),
    # These change nothing here.
    **dict.fromkeys(("rope.scaling.original_context_length", "rope.scaling.finetuned"), ANY),
    "tensor_data_layout": ANY,
    **dict.fromkeys(GRANITE_SCALES.values(), one_of(0)),
}
"""The keys of an architecture, without its name before them."""

_NEEDED_KEYS = (
    "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.layer_norm_rms_epsilon",
)  # fmt: skip

_GENERAL_RULES: Mapping[str, Rule] = {
    "general.type": one_of("model"),
    "general.quantization_version": one_of(2),
    "general.architecture": one_of(*ARCHITECTURES),
    "tokenizer.chat_template": ("a text", lambda value: isinstance(value, str)),
}


@dataclass(frozen=True, slots=True)
class GgufConfig:
    """The hyperparameters of one model, checked."""

    architecture: str  # a key of `ARCHITECTURES`
    given: Mapping[str, GgufValue]  # by key, without the name of the architecture before it
    sizes: Mapping[str, Any]  # by the names of `ModelArgs`
    rope_factor: float  # what divides all rotary frequencies; 1 for nothing


def read_gguf_config(file: GgufFile) -> GgufConfig:
    """Read the hyperparameters of a model from the header of its first file."""
    label, keys = file.label, file.keys
    general = {key: value for key, value in keys.items() if key in _GENERAL_RULES}
    check_object(label, general, _GENERAL_RULES, ["general.architecture"])
    name = str(keys["general.architecture"])
    prefix = f"{name}."
    values = {key: value for key, value in keys.items() if key.startswith(prefix)}
    scales = GRANITE_SCALES.values() if name == "granite" else ()
    rules = RULES | dict.fromkeys(scales, number_in(0, 1e6))
    kind = values.get(f"{prefix}rope.scaling.type")
    needed = [prefix + key for key in _NEEDED_KEYS]
    needed += [f"{prefix}rope.scaling.factor"] * (kind == "linear")
    check_object(label, values, {prefix + key: rule for key, rule in rules.items()}, needed)
    given = {key.removeprefix(prefix): value for key, value in values.items()}
    if "attention.key_length" not in given:
        check_divides(label, values, f"{prefix}embedding_length", f"{prefix}attention.head_count")
    sizes = sizes_of(GGUF_KEYS, given)
    for key in ("attention.value_length", "rope.dimension_count"):
        if given.get(key, sizes["head_dim"]) != sizes["head_dim"]:
            rule = f"{sizes['head_dim']}, the size of a head"
            raise mismatch(label, prefix + key, rule, given[key])
    factor = 1.0 if kind == "none" else float(value_of(given, "rope.scaling.factor", 1.0))
    return GgufConfig(name, given, sizes, factor)
