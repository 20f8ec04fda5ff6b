"""The keys of a GGUF file that say what a model computes, checked as `params.py` says.

Only those of the architecture do; keys outside of it describe the file.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `src/llama-arch.cpp`, `src/llama-model.cpp` and
`convert_hf_to_gguf.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import mismatch
from .gguf import GgufFile, GgufValue
from .params import (
    ANY,
    DEFAULT_ROPE_THETA,
    MOST_LAYERS,
    SIZE,
    Rule,
    check_divides,
    check_object,
    integer_in,
    number_in,
    one_of,
    value_of,
)

RopePairs = Literal["interleaved", "halves"]

ARCHITECTURES: Mapping[str, RopePairs] = {
    **dict.fromkeys(("llama", "smollm3", "granite"), "interleaved"),
    **dict.fromkeys(("qwen2", "qwen3", "olmo2"), "halves"),
}
"""The architectures that are loaded, and which rows of q and k are rotated together."""

GRANITE_SCALES = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
"""The factors that only Granite has; 0 is none."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(("context_length", "embedding_length"), SIZE),
    "block_count": integer_in(1, MOST_LAYERS),
    **dict.fromkeys(("feed_forward_length", "vocab_size"), SIZE),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), SIZE),
    **dict.fromkeys(("attention.key_length", "attention.value_length"), SIZE),
    "attention.layer_norm_rms_epsilon": number_in(0, 1),
    "rope.dimension_count": SIZE,
    "rope.freq_base": number_in(1, 1e12),
    "rope.scaling.type": one_of("none", "linear"),
    "rope.scaling.factor": number_in(1, 1e6),
    # Other values of these change the result in ways that are not supported.
    **dict.fromkeys(("expert_count", "expert_used_count"), one_of(0)),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias"), one_of(0)),
    "attention.causal": one_of(True),
    # These change nothing here.
    **dict.fromkeys(("rope.scaling.original_context_length", "rope.scaling.finetuned"), ANY),
    "tensor_data_layout": ANY,
    **dict.fromkeys(GRANITE_SCALES, one_of(0)),
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
    head_dim: int  # h
    rope_theta: float  # the base of the rotary frequencies
    rope_factor: float  # what divides all rotary frequencies; 1 for nothing


def read_gguf_config(file: GgufFile) -> GgufConfig:
    """Read the hyperparameters of a model from the header of its first file."""
    label, keys = file.label, file.keys
    general = {key: value for key, value in keys.items() if key in _GENERAL_RULES}
    check_object(label, general, _GENERAL_RULES, ["general.architecture"])
    name = str(keys["general.architecture"])
    prefix = f"{name}."
    values = {key: value for key, value in keys.items() if key.startswith(prefix)}
    rules = RULES | dict.fromkeys(GRANITE_SCALES if name == "granite" else (), number_in(0, 1e6))
    needed = [prefix + key for key in _NEEDED_KEYS]
    check_object(label, values, {prefix + key: rule for key, rule in rules.items()}, needed)
    given = {key.removeprefix(prefix): value for key, value in values.items()}
    theta = float(value_of(given, "rope.freq_base", DEFAULT_ROPE_THETA))
    if "attention.key_length" not in given:
        check_divides(label, values, f"{prefix}embedding_length", f"{prefix}attention.head_count")
    quotient = value_of(given, "embedding_length", 0) // value_of(given, "attention.head_count", 1)
    head_dim = value_of(given, "attention.key_length", quotient)
    for key in ("attention.value_length", "rope.dimension_count"):
        if given.get(key, head_dim) != head_dim:
            raise mismatch(label, prefix + key, f"{head_dim}, the size of a head", given[key])
    kind, factor = given.get("rope.scaling.type"), given.get("rope.scaling.factor")
    if kind == "linear" and factor is None:
        raise mismatch(label, f"key '{prefix}rope.scaling.factor'", "a number", "none")
    factor = 1.0 if kind == "none" else float(value_of(given, "rope.scaling.factor", 1.0))
    return GgufConfig(name, given, head_dim, theta, factor)
