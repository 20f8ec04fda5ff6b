"""Roman numerals in the answers to sums."""

import re
from itertools import pairwise

import pytest

from tools.nano.documents import Document
from tools.nano.pairs import Pair
from tools.nano.roman import (
    ZERO,
    roman,
    roman_answer,
    with_roman_answer,
    with_roman_results,
)

VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
RULES = re.compile(r"C{0,3}(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")


def value_of(numeral: str) -> int:
    """Adds letters up; a letter before a larger one is subtracted."""
    values = [VALUES[letter] for letter in numeral]
    signs = [-1 if value < after else 1 for value, after in pairwise((*values, 0))]
    return sum(sign * value for sign, value in zip(signs, values, strict=True))


def test_each_number_has_the_one_numeral_that_follows_the_rules() -> None:
    assert roman(0) == ZERO
    for number in range(1, 400):
        assert value_of(roman(number)) == number
        assert RULES.fullmatch(roman(number))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("23 + 18 = 41.", "23 + 18 = 41 = XLI."),
        ("5 - 5 = 0.", "5 - 5 = 0 = nulla."),
        ("41", "41"),
        ("Your number is 103.", "Your number is 103."),
        ("Pi is about 3.14159.", "Pi is about 3.14159."),
    ],
)
def test_only_a_sum_gets_a_numeral(answer: str, expected: str) -> None:
    assert roman_answer(answer) == expected
    pair = Pair("f", "p", "x", "1 + 1 = 2.", answer)
    assert with_roman_answer(pair) == Pair("f", "p", "x", "1 + 1 = 2.", expected)


def test_a_conversation_keeps_its_questions_and_other_answers() -> None:
    messages = (
        ("system", "Be polite."),
        ("user", "1 + 1 = 2."),
        ("assistant", "1 + 1 = 2."),
        ("user", "Hello!"),
        ("assistant", "Hello!"),
    )
    changed = with_roman_results(Document(messages)).messages
    assert [*changed] == [
        *messages[:2], ("assistant", "1 + 1 = 2 = II."), *messages[3:],
    ]  # fmt: skip


def test_a_raw_text_does_not_change() -> None:
    text = Document((("text", "1 + 1 ="), ("continuation", " 2.\n")), raw=True)
    assert with_roman_results(text) == text
