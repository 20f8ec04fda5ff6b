"""JSON as the standard has it: what Python's parser lets through beyond that is refused."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from .errors import shown

__all__ = ["parse_strict_json"]

_DEEPEST = 32
_MOST_DIGITS = 32
_STRINGS_AND_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def parse_strict_json(content: bytes) -> object:
    """Parse UTF-8 JSON without duplicate keys, NaN, infinities, huge numbers and deep nesting.

    Args:
        content: the whole text; the caller bounds its length.

    Returns:
        dict, list, str, int, float, bool or None.

    Raises:
        ValueError: with a text of the form `expected X, got Y`, safe to show.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, got other bytes at byte {error.start}") from None
    _check_depth(text)
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


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the parser, which is recursive, meets it."""
    depth = 0
    for match in _STRINGS_AND_BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
        elif match[0] in "]}":
            depth -= 1
        if depth > _DEEPEST:
            raise ValueError(f"expected at most {_DEEPEST} levels, got more")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"expected each key once, got {shown(key)} twice")
        result[key] = value
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
