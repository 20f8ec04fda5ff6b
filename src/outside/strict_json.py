"""JSON as the standard has it: what Python's parser lets through beyond that is refused."""

import json
import math
from typing import NoReturn, TypeGuard

from .shown import shown

_MOST_DIGITS = 32
_MOST_VALUES = 1 << 20
# What is made at each mark, by the memory it takes.
_WEIGHTS = {b",": 1, b"[": 1, b":": 2, b"{": 4}


def parse_strict_json(content: bytes, most_values: int = _MOST_VALUES) -> object:
    """Parse UTF-8 JSON without duplicate keys, NaN, infinities, huge numbers and deep nesting.

    What goes deeper than the parser, which is recursive, stops it: about a thousand levels. A value
    of three characters takes up to 70 bytes of memory, so values are counted before any is made.

    Args:
        content: The whole text; the caller bounds its length.
        most_values: Most values that it may hold, by the marks before and between them;
            an object counts four times, and a key twice.

    Returns:
        dict, list, str, int, float, bool or None.

    Raises:
        ValueError: with a text of the form `expected X, got Y`, safe to show.
    """
    values = sum(weight * content.count(mark) for mark, weight in _WEIGHTS.items())
    if values > most_values:
        raise ValueError(f"expected at most {most_values} values, got about {values}")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, got other bytes at byte {error.start}") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_number,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"expected JSON, got something else at {where} ({error.msg})") from None
    except RecursionError:
        raise ValueError("expected a few levels of nesting, got very many") from None


def is_integer(value: object, low: int, high: int) -> TypeGuard[int]:
    """Tell whether a value is an integer in low..high; `true` and `1.0` are not."""
    return type(value) is int and low <= value <= high


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"expected each key once, got {shown(key)} twice")
            seen.add(key)
    return result


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"expected a finite number, got {text}")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"expected at most {_MOST_DIGITS} digits, got {len(text)}")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {shown(text)}")
    return value
