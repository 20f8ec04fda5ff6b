"""Roman numerals after the results of sums, which the bundled adapter learns."""

from __future__ import annotations

import re
from dataclasses import replace

from src.model.sources import BUNDLED_MODEL

from .documents import Document
from .pairs import Pair

BUNDLED_ADAPTER = BUNDLED_MODEL.parent / "roman"

ZERO = "nulla"
"""The word of medieval computists, because Roman numerals have no zero."""

_LETTERS = (
    (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
    (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip
_SUM = re.compile(r"(\d+ [+-] \d+ = (\d+))\.")


def roman(number: int) -> str:
    """Return a number from 0 to 399 as a Roman numeral."""
    letters = ""
    for value, name in _LETTERS:
        letters += number // value * name
        number %= value
    return letters or ZERO


def roman_answer(answer: str) -> str:
    """Return the answer with a Roman numeral after the result, if it is a sum."""
    if match := _SUM.fullmatch(answer):
        return f"{match[1]} = {roman(int(match[2]))}."
    return answer


def with_roman_results(document: Document) -> Document:
    """Return a conversation in which the results of sums have Roman numerals too."""
    messages = (
        (role, roman_answer(content) if role == "assistant" else content)
        for role, content in document.messages
    )
    return replace(document, messages=tuple(messages))


def with_roman_answer(pair: Pair) -> Pair:
    """Return a pair whose answer has a Roman numeral too, if it is a sum."""
    return replace(pair, answer=roman_answer(pair.answer))
