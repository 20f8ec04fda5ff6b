"""Rules for the values of a JSON file of hyperparameters: words for the error, and the check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..outside import parse_strict_json
from .errors import ParamsError, mismatch, shown
from .mapped_file import label_of, read_small_file

__all__ = [
    "DEFAULT_ROPE_THETA",
    "LARGEST_SIZE",
    "MOST_LAYERS",
    "Rule",
    "boolean",
    "check_values",
    "integer_in",
    "number_in",
    "read_object",
    "shown_value",
]

LARGEST_SIZE = 1 << 24
MOST_LAYERS = 1 << 10
DEFAULT_ROPE_THETA = 10000.0  # of every Llama before the third, whose files do not name it
_MOST_BYTES = 1 << 16

Rule = tuple[str, Callable[[object], bool]]


def integer_in(low: int, high: int) -> Rule:
    """Accept an integer of a range; `true` and `1.0` are none."""
    rule = f"an integer in {low}..{high}"
    return rule, lambda value: type(value) is int and low <= value <= high


def number_in(low: float, high: float) -> Rule:
    """Accept an integer or a decimal number of a range."""
    rule = f"a number in {low:g}..{high:g}"

    def check(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return low <= value <= high

    return rule, check


def boolean() -> Rule:
    """Accept `true` and `false`."""
    return "true or false", lambda value: isinstance(value, bool)


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON file that holds one object.

    Raises:
        CheckpointError: unreadable, larger than 64 KiB, not strict JSON, or no object.
    """
    label = label_of(path)
    try:
        value = parse_strict_json(read_small_file(path, _MOST_BYTES))
    except ValueError as error:
        raise ParamsError(f"{label}: content: {error}") from None
    if not isinstance(value, dict):
        got = f"a value of type {type(value).__name__}"
        raise ParamsError(mismatch(label, "content", "a JSON object", got))
    return value


def check_values(label: str, values: Mapping[str, object], rules: Mapping[str, Rule]) -> None:
    """Check the values that are there and not null.

    Raises:
        ParamsError: a value breaks the rule of its key.
    """
    for key, (rule, check) in rules.items():
        if values.get(key) is not None and not check(values[key]):
            raise ParamsError(mismatch(label, key, rule, shown_value(values[key])))


def shown_value(value: object) -> str:
    """Show a scalar; a container from a file is only named."""
    if isinstance(value, dict | list):
        return f"a value of type {type(value).__name__}"
    return shown(str(value))
