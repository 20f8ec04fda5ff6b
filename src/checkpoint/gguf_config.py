"""The keys of a GGUF file that say what a model computes, checked.

As in Hugging Face's files, each key of the architecture is used, known not to matter, or refused by
name; keys that nobody knows are refused too. Keys outside of it describe the file.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `src/llama-arch.cpp`, `src/llama-model.cpp` and
`convert_hf_to_gguf.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..untrusted import described, shown
from .errors import mismatch
from .gguf import GgufFile, GgufValue
from .params import (
    DEFAULT_ROPE_THETA,
    MOST_LAYERS,
    SIZE,
    Rule,
    check_keys,
    check_values,
    integer_in,
    is_one_of,
    number_in,
    value_of,
)

RopePairs = Literal["interleaved", "halves"]

ARCHITECTURES: Mapping[str, RopePairs] = {
    **dict.fromkeys(("llama", "smollm3", "granite"), "interleaved"),
    **dict.fromkeys(("qwen2", "qwen3", "olmo2"), "halves"),
}
"""The architectures that are loaded, and which rows of q and k are rotated together."""

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("context_length", "embedding_length"), SIZE),
    "block_count": integer_in(1, MOST_LAYERS),
    **dict.fromkeys(("feed_forward_length", "vocab_size"), SIZE),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), SIZE),
    **dict.fromkeys(("attention.key_length", "attention.value_length"), SIZE),
    "attention.layer_norm_rms_epsilon": number_in(0, 1),
    "rope.dimension_count": SIZE,
    "rope.freq_base": number_in(1, 1e12),
    "rope.scaling.type": ("'none' or 'linear'", lambda value: value in ("none", "linear")),
    "rope.scaling.factor": number_in(1, 1e6),
    "rope.scale_linear": number_in(1, 1e6),  # its name before `rope.scaling`
}
"""The keys that say what is computed, without the name of the architecture before them."""

GRANITE_SCALES = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
"""The factors that only Granite has; 0 is none."""

_NEEDED_KEYS = (
    "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.layer_norm_rms_epsilon",
)  # fmt: skip

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    **dict.fromkeys(GRANITE_SCALES, (0,)),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
}
"""Keys whose other values change the result in ways that are not supported."""

HARMLESS_KEYS = frozenset({
    "tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned",
})  # fmt: skip
"""Keys that change nothing here."""


@dataclass(frozen=True, slots=True)
class GgufConfig:
    """The hyperparameters of one model, checked."""

    architecture: str  # a key of `ARCHITECTURES`
    given: Mapping[str, GgufValue]  # by key, without the name of the architecture before it
    head_dim: int  # h
    rope_theta: float  # the base of the rotary frequencies
    rope_factor: float  # what divides all rotary frequencies; 1 for nothing


def read_gguf_config(file: GgufFile) -> GgufConfig:
    """Read the hyperparameters of a model from the header of its first file.

    Raises:
        CheckpointError: The file holds no model, or one of an architecture that is not supported; a
            key is missing, unknown or unsupported, a value out of range, or keys contradict each
            other.
    """
    label, keys = file.label, file.keys
    for key, accepted in (("general.type", ("model",)), ("general.quantization_version", (2,))):
        if key in keys and not is_one_of(keys[key], accepted):
            raise mismatch(label, f"key '{key}'", described(accepted[0]), described(keys[key]))
    name = keys.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        rule = f"one of {', '.join(ARCHITECTURES)}"
        got = "none" if name is None else described(name)
        raise mismatch(label, "key 'general.architecture'", rule, got)
    prefix = f"{name}."
    values = {key: value for key, value in keys.items() if key.startswith(prefix)}
    rules = {prefix + key: rule for key, rule in RULES.items()}
    if name == "granite":
        rules |= {prefix + key: number_in(0, 1e6) for key in GRANITE_SCALES}
    for key, neutral in NEUTRAL_VALUES.items():
        if prefix + key in rules:
            continue
        value = values.get(prefix + key)
        if value is not None and not is_one_of(value, neutral):
            got = f"{described(value)}, which is not supported"
            raise mismatch(label, f"key {shown(prefix + key)}", described(neutral[0]), got)
    known = {prefix + key for key in (*RULES, *NEUTRAL_VALUES, *HARMLESS_KEYS)}
    check_keys(label, values, known, tuple(prefix + key for key in _NEEDED_KEYS))
    check_values(label, values, rules)
    given = {key.removeprefix(prefix): value for key, value in values.items()}
    theta = float(value_of(given, "rope.freq_base", DEFAULT_ROPE_THETA))
    head_dim, factor = _head_dim(label, prefix, given), _rope_factor(label, prefix, given)
    return GgufConfig(name, given, head_dim, theta, factor)


def _head_dim(label: str, prefix: str, given: Mapping[str, GgufValue]) -> int:
    """Return the size of a head, which several keys may say."""
    dim, heads = value_of(given, "embedding_length", 0), value_of(given, "attention.head_count", 0)
    if "attention.key_length" not in given and dim % heads:
        what = f"{prefix}embedding_length % {prefix}attention.head_count"
        raise mismatch(label, what, 0, f"{dim} % {heads} = {dim % heads}")
    size = value_of(given, "attention.key_length", dim // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if given.get(key, size) != size:
            raise mismatch(label, prefix + key, f"{size}, the size of a head", given[key])
    return size


def _rope_factor(label: str, prefix: str, given: Mapping[str, GgufValue]) -> float:
    """Return what divides all rotary frequencies."""
    kind, factor = given.get("rope.scaling.type"), given.get("rope.scaling.factor")
    older = given.get("rope.scale_linear")
    if kind == "linear" and factor is None and older is None:
        raise mismatch(label, f"key '{prefix}rope.scaling.factor'", "a number", "none")
    if kind == "none":
        return 1.0
    found = {float(each) for each in (factor, older) if isinstance(each, int | float)}
    if len(found) > 1:
        raise mismatch(label, f"{prefix}rope.scale_linear", factor, older)
    return found.pop() if found else 1.0
