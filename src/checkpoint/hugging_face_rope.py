"""The rotary embedding in `config.json`, in both spellings that transformers has had for it.

Up to transformers 4: `rope_theta`, and `rope_scaling` with `type` or `rope_type`. Since 5:
`rope_parameters`, which holds the base too.

Source: transformers 5.23, `modeling_rope_utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import ParamsError, mismatch, some_of
from .hugging_face_keys import RULES, is_neutral
from .key_rules import LARGEST_SIZE, Rule, check_values, integer_in, number_in, shown_value

__all__ = ["RopeParameters", "read_rope_parameters"]

_DEFAULT_THETA = 10000.0

RopeKind = Literal["default", "linear", "llama3"]
_KEYS: Mapping[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
_COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_RULES: Mapping[str, Rule] = {
    "rope_theta": RULES["rope_theta"],
    "factor": number_in(1, 1e6),
    "low_freq_factor": number_in(1e-6, 1e6),
    "high_freq_factor": number_in(1e-6, 1e6),
    "original_max_position_embeddings": integer_in(1, LARGEST_SIZE),
    "partial_rotary_factor": ("1, the whole head", lambda value: is_neutral(value, (1,))),
}


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """The base of the rotary embedding, and how its frequencies are stretched.

    `default` uses the base alone, `linear` the factor too, and `llama3` all.
    """

    kind: RopeKind
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context_length: int = 0


def read_rope_parameters(label: str, config: Mapping[str, object]) -> RopeParameters:
    """Read the rotary embedding of a configuration whose top-level values are checked.

    Args:
        label: what to call the file in errors.
        config: the content of `config.json`.

    Raises:
        ParamsError: an unknown kind, a key that its kind lacks or does not know, a value out of
            range, or two spellings that say different things.
    """
    found = []
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if isinstance(value, dict) and value:
            found.append(_read(f"{label}: {key}", value, config.get("rope_theta")))
    if len(found) == 2 and found[0] != found[1]:
        raise ParamsError(mismatch(label, "rope_parameters", "the same as rope_scaling", "others"))
    return found[0] if found else RopeParameters("default", _theta(config.get("rope_theta")))


def _read(label: str, values: Mapping[str, object], outer_theta: object) -> RopeParameters:
    kind = _kind(label, values)
    keys = _KEYS[kind]
    unknown = [key for key in values if key not in keys and key not in _COMMON_KEYS]
    if unknown:
        raise ParamsError(mismatch(label, "keys", f"those of '{kind}'", some_of(unknown)))
    missing = [key for key in keys if values.get(key) is None]
    if missing:
        raise ParamsError(mismatch(label, "keys", ", ".join(keys), f"without {some_of(missing)}"))
    check_values(label, values, _RULES)
    inner_theta = values.get("rope_theta")
    if inner_theta is not None and outer_theta is not None and inner_theta != outer_theta:
        got = f"{inner_theta}, and {outer_theta} beside it"
        raise ParamsError(mismatch(label, "rope_theta", "one value", got))
    theta = _theta(outer_theta if inner_theta is None else inner_theta)
    if kind == "default":
        return RopeParameters(kind, theta)
    factor = _number(values, "factor")
    if kind == "linear":
        return RopeParameters(kind, theta, factor)
    low, high = _number(values, "low_freq_factor"), _number(values, "high_freq_factor")
    if low >= high:
        raise ParamsError(mismatch(label, "low_freq_factor", f"below high_freq_factor {high}", low))
    original = values["original_max_position_embeddings"]
    assert isinstance(original, int)
    return RopeParameters(kind, theta, factor, low, high, original)


def _kind(label: str, values: Mapping[str, object]) -> RopeKind:
    """Read the kind, `rope_type` or in older files `type`; null is the default one."""
    named = [values[key] for key in ("rope_type", "type") if values.get(key) is not None]
    if len(named) == 2 and named[0] != named[1]:
        raise ParamsError(mismatch(label, "type", f"rope_type {shown_value(named[0])}", "another"))
    value = named[0] if named else "default"
    for kind in _KEYS:
        if value == kind:
            return kind
    raise ParamsError(
        mismatch(label, "rope_type", f"one of {', '.join(_KEYS)}", shown_value(value))
    )


def _theta(value: object) -> float:
    return float(value) if isinstance(value, int | float) else _DEFAULT_THETA


def _number(values: Mapping[str, object], key: str) -> float:
    value = values[key]
    assert isinstance(value, int | float)
    return float(value)
