"""`config.json` and `generation_config.json`: their keys and values, checked.

The rotary embedding has had two spellings in transformers. Up to version 4: `rope_theta`, and
`rope_scaling` with `type` or `rope_type`. Since 5: `rope_parameters`, which holds the base too.

Source: transformers 5.23, `modeling_rope_utils.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import ParamsError, mismatch, shown, some_of
from .hugging_face_keys import (
    GENERATION_HARMLESS_KEYS,
    GENERATION_RULES,
    HARMLESS_KEYS,
    NEUTRAL_VALUES,
    REFUSED_KEYS,
    RULES,
    is_neutral,
)
from .key_rules import (
    DEFAULT_ROPE_THETA,
    LARGEST_SIZE,
    Rule,
    check_values,
    integer_in,
    number_in,
    read_object,
    shown_value,
)
from .mapped_file import label_of
from .quantization_config import QuantizationConfig, read_quantization

__all__ = ["CONFIG_FILE", "HuggingFaceConfig", "read_hugging_face_config"]

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"

_NEEDED_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "vocab_size",
)  # fmt: skip
RopeType = Literal["default", "linear", "llama3"]
_ROPE_KEYS: Mapping[RopeType, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
_COMMON_ROPE_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_ROPE_RULES: Mapping[str, Rule] = {
    "rope_theta": RULES["rope_theta"],
    "factor": number_in(1, 1e6),
    "low_freq_factor": number_in(1e-6, 1e6),
    "high_freq_factor": number_in(1e-6, 1e6),
    "original_max_position_embeddings": integer_in(1, LARGEST_SIZE),
    "partial_rotary_factor": ("1, the whole head", lambda value: is_neutral(value, (1,))),
}


@dataclass(frozen=True, slots=True)
class HuggingFaceConfig:
    """The configuration files of one model, their keys and values checked.

    Args:
        given: `config.json` as it is in the file.
        generation: `generation_config.json`; empty where there is none.
        rope_type: how the frequencies of the rotary embedding are scaled.
        rope: `rope_theta`, and the numbers that belong to the type, by their keys.
        quantization: how quantised weights are stored, or None where all are plain.
    """

    given: dict[str, object]
    generation: dict[str, object]
    rope_type: RopeType
    rope: dict[str, float]
    quantization: QuantizationConfig | None


def read_hugging_face_config(directory: Path) -> HuggingFaceConfig:
    """Read `config.json`, and `generation_config.json` where it is.

    Raises:
        CheckpointError: unreadable, not strict JSON, a key missing, unknown or unsupported, a value
            out of range, heads that do not divide, or parts that contradict each other.
    """
    path = directory / CONFIG_FILE
    label, config = label_of(path), read_object(path)
    _check_known(label, config, set(RULES), HARMLESS_KEYS)
    missing = [key for key in _NEEDED_KEYS if config.get(key) is None]
    if missing:
        got = f"without {some_of(missing)}"
        raise ParamsError(mismatch(label, "keys", ", ".join(_NEEDED_KEYS), got))
    check_values(label, config, RULES)
    _check_sizes(label, config)
    generation = _read_generation_config(directory / GENERATION_FILE)
    _check_ids(label, config, config["vocab_size"])
    _check_ids(label_of(directory / GENERATION_FILE), generation, config["vocab_size"])
    rope_type, rope = _rope(label, config)
    quantization = read_quantization(label, config)
    return HuggingFaceConfig(config, generation, rope_type, rope, quantization)


def _check_known(
    label: str, values: Mapping[str, object], used: set[str], harmless: frozenset[str]
) -> None:
    """Refuse keys that change the result, and keys that nobody knows, by name."""
    for key, value in values.items():
        if key in REFUSED_KEYS and value not in (None, False, {}, []):
            got = f"{REFUSED_KEYS[key]}, which is not supported"
            raise ParamsError(mismatch(label, f"key {shown(key)}", "a plain Llama model", got))
        if key in NEUTRAL_VALUES and not is_neutral(value, NEUTRAL_VALUES[key]):
            rule = " or ".join(["null", *(shown_value(item) for item in NEUTRAL_VALUES[key])])
            got = f"{shown_value(value)}, which is not supported"
            raise ParamsError(mismatch(label, f"key {shown(key)}", rule, got))
    known = used | harmless | NEUTRAL_VALUES.keys() | REFUSED_KEYS.keys()
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ParamsError(mismatch(label, "keys", "only known ones", some_of(unknown)))


def _read_generation_config(path: Path) -> dict[str, object]:
    if not os.path.exists(path):
        return {}
    label, values = label_of(path), read_object(path)
    _check_known(label, values, set(GENERATION_RULES), GENERATION_HARMLESS_KEYS)
    check_values(label, values, GENERATION_RULES)
    return values


def _check_ids(label: str, values: Mapping[str, object], vocab_size: object) -> None:
    """Check that the tokens that begin or end a text belong to the vocabulary."""
    assert isinstance(vocab_size, int)
    for key in GENERATION_RULES:
        value = values.get(key)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number >= vocab_size:
                raise ParamsError(mismatch(label, key, f"0 <= id < {vocab_size}", number))


def _check_sizes(label: str, config: Mapping[str, object]) -> None:
    """Check the heads against the model dimension, and that only a Mistral has a window."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    assert isinstance(hidden, int)
    assert isinstance(heads, int)
    if config.get("head_dim") is None and hidden % heads:
        what = "hidden_size % num_attention_heads"
        raise ParamsError(mismatch(label, what, 0, f"{hidden} % {heads} = {hidden % heads}"))
    if config["model_type"] != "mistral" and config.get("sliding_window") is not None:
        got = "attention in a sliding window, which a llama has not"
        raise ParamsError(mismatch(label, "key 'sliding_window'", "null", got))


def _rope(label: str, config: Mapping[str, object]) -> tuple[RopeType, dict[str, float]]:
    """Read the rotary embedding of a configuration whose top-level values are checked.

    Raises:
        ParamsError: an unknown type, a key that its type lacks or does not know, a value out of
            range, or two spellings that say different things.
    """
    found = []
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if isinstance(value, dict) and value:
            found.append(_rope_of(f"{label}: {key}", value, config.get("rope_theta")))
    if len(found) == 2 and found[0] != found[1]:
        raise ParamsError(mismatch(label, "rope_parameters", "the same as rope_scaling", "others"))
    return found[0] if found else ("default", {"rope_theta": _theta(config.get("rope_theta"))})


def _rope_of(
    label: str, values: Mapping[str, object], outer_theta: object
) -> tuple[RopeType, dict[str, float]]:
    kind = _rope_type(label, values)
    keys = _ROPE_KEYS[kind]
    unknown = [key for key in values if key not in keys and key not in _COMMON_ROPE_KEYS]
    if unknown:
        raise ParamsError(mismatch(label, "keys", f"those of '{kind}'", some_of(unknown)))
    missing = [key for key in keys if values.get(key) is None]
    if missing:
        raise ParamsError(mismatch(label, "keys", ", ".join(keys), f"without {some_of(missing)}"))
    check_values(label, values, _ROPE_RULES)
    inner_theta = values.get("rope_theta")
    if inner_theta is not None and outer_theta is not None and inner_theta != outer_theta:
        got = f"{inner_theta}, and {outer_theta} beside it"
        raise ParamsError(mismatch(label, "rope_theta", "one value", got))
    numbers = {key: float(each) for key in keys if isinstance(each := values[key], int | float)}
    if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
        raise ParamsError(mismatch(label, "low_freq_factor", f"below high_freq_factor {high}", low))
    return kind, numbers | {
        "rope_theta": _theta(outer_theta if inner_theta is None else inner_theta)
    }


def _rope_type(label: str, values: Mapping[str, object]) -> RopeType:
    """Read the type, `rope_type` or in older files `type`; null is the default one."""
    named = [values[key] for key in ("rope_type", "type") if values.get(key) is not None]
    if len(named) == 2 and named[0] != named[1]:
        raise ParamsError(mismatch(label, "type", f"rope_type {shown_value(named[0])}", "another"))
    value = named[0] if named else "default"
    for kind in _ROPE_KEYS:
        if value == kind:
            return kind
    raise ParamsError(
        mismatch(label, "rope_type", f"one of {', '.join(_ROPE_KEYS)}", shown_value(value))
    )


def _theta(value: object) -> float:
    return float(value) if isinstance(value, int | float) else DEFAULT_ROPE_THETA
