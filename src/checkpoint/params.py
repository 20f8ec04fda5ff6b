"""Rules for the values of files of hyperparameters, and Meta's `params.json` read by them.

A key that is skipped silently is a model that runs and talks nonsense. So each key is known to be
used, known not to matter, or refused by name; keys that nobody knows are refused too.

Source: meta-llama/llama-models, `models/llama3/args.py` and `models/llama4/args.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..untrusted import described, is_integer, label_of, read_json_object, some_of
from .errors import CheckpointError, mismatch

LARGEST_SIZE = 1 << 24
MOST_LAYERS = 1 << 10
DEFAULT_ROPE_THETA = 10000.0  # of every Llama before the third, whose files do not name it
MOST_CONFIG_BYTES = 1 << 16

T = TypeVar("T")
Rule = tuple[str, Callable[[object], bool]]
"""A rule in words, for the error, and its check."""


def integer_in(low: int, high: int) -> Rule:
    """Accept an integer of a range; `true` and `1.0` are none."""
    return f"an integer in {low}..{high}", lambda value: is_integer(value, low, high)


def number_in(low: float, high: float) -> Rule:
    """Accept an integer or a decimal number of a range."""
    return (
        f"a number in {low:g}..{high:g}",
        lambda value: (
            isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        ),
    )


def one_of(*accepted: object) -> Rule:
    """Accept these values; `true` is not 1 here."""
    return " or ".join(map(described, accepted)) or "null", lambda value: any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted
    )


ANY: Rule = ("any value", lambda _: True)
OBJECT: Rule = ("an object", lambda value: isinstance(value, dict))
BOOLEAN = one_of(True, False)
SIZE = integer_in(1, LARGEST_SIZE)

# Of the sizes and constants that every source has, by their names in `ModelArgs`; SIZE for others.
_RULES: Mapping[str, Rule] = {
    "n_layers": integer_in(1, MOST_LAYERS),
    "norm_eps": number_in(0, 1),
    "rope_theta": number_in(1, 1e12),
}


def rules_of(keys: Mapping[str, str]) -> dict[str, Rule]:
    """Return the rules of a source's `keys`, which stand for these names in `ModelArgs`."""
    return {key: _RULES.get(name, SIZE) for name, key in keys.items()}


def sizes_of(
    keys: Mapping[str, str], values: Mapping[str, object], **defaults: object
) -> dict[str, Any]:
    """Return what checked values say by the names of `ModelArgs`; 0 where only tensors do."""
    found: dict[str, Any] = {"vocab_size": 0, "rope_theta": DEFAULT_ROPE_THETA, **defaults}
    found |= {name: values[key] for name, key in keys.items() if values.get(key) is not None}
    found = {"n_kv_heads": found["n_heads"], "head_dim": found["dim"] // found["n_heads"]} | found
    return found | {name: float(found[name]) for name in ("norm_eps", "rope_theta")}


PARAMS_KEYS = {"max_context_length": "max_seq_len"} | {
    name: name
    for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "norm_eps", "rope_theta")
}
"""Keys that every source has in some way, by their names in `ModelArgs`."""

USED_KEYS: Mapping[str, Rule] = {
    **rules_of(PARAMS_KEYS),
    # Llama 2 writes -1 for "as many as the tokenizer has".
    "vocab_size": (f"-1 or {SIZE[0]}", lambda value: is_integer(value, -1, -1) or SIZE[1](value)),
    "multiple_of": SIZE,
    "ffn_dim_multiplier": number_in(1e-3, 1e3),
    "use_scaled_rope": BOOLEAN,
}
"""The keys that say what is computed."""

HARMLESS_KEYS = frozenset({"max_batch_size", "model_parallel_size"})
"""Keys that only sized the buffers of the program that wrote or ran the model."""

_NEEDED_KEYS = ("dim", "n_layers", "n_heads", "norm_eps")


def read_params(path: Path) -> dict[str, object]:
    """Read and check `params.json`.

    Returns:
        The object as it is in the file; each key is used or harmless, each value in
        its range or null where the key is optional.

    Raises:
        CheckpointError: Unreadable, not strict JSON, a key missing, unknown or unsupported, a value
            out of range, or heads that do not divide.
    """
    label, params = label_of(path), read_json_object(path, MOST_CONFIG_BYTES, CheckpointError)
    check_object(label, params, {**USED_KEYS, **dict.fromkeys(HARMLESS_KEYS, ANY)}, _NEEDED_KEYS)
    check_divides(label, params, "dim", "n_heads")
    check_divides(label, params, "n_heads", "n_kv_heads")
    return params


def check_object(
    label: str, values: Mapping[str, object], rules: Mapping[str, Rule], needed: Iterable[str] = ()
) -> None:
    """Check values by the rules of their keys; null is as good as absent, other keys are wrong."""
    for key, (rule, check) in rules.items():
        value = values.get(key)
        if value is not None and not check(value):
            raise mismatch(label, key, rule, described(value))
    unknown = [key for key in values if key not in rules]
    if unknown:
        raise mismatch(label, "keys", "only known ones", some_of(unknown))
    missing = [key for key in needed if values.get(key) is None]
    if missing:
        raise mismatch(label, "keys", ", ".join(needed), f"without {some_of(missing)}")


def check_divides(label: str, values: Mapping[str, object], over: str, under: str) -> None:
    """Check that a size is a multiple of another one; an absent one has a default that divides."""
    large, small = value_of(values, over, 0), value_of(values, under, 1)
    if large % small:
        raise mismatch(label, f"{over} % {under}", 0, f"{large} % {small} = {large % small}")


def value_of(values: Mapping[str, object], key: str, default: T) -> T:
    """Return a value whose rule was checked, or the default where it is absent or null."""
    value = values.get(key)
    return default if value is None else value  # type: ignore[return-value]  # its rule holds
