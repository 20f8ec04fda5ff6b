"""Varied questions: what people type, with the same meaning and the same words to
copy.
"""

import random
import re
from functools import cache

import pytest

from tools.nano.variation import KEPT, KNOWN_WORDS, typing_error, vary

QUESTION = "What is the capital of France?"


@cache
def forms(text: str, count: int = 3000) -> set[str]:
    generator = random.Random(4)
    return {vary(text, generator) for _ in range(count)}


@pytest.mark.parametrize(
    "form",
    [
        "what is the capital of france?", "WHAT IS THE CAPITAL OF FRANCE?",
        "What is the capital of France", "what is the capital of france??",
        "what's the capital of france?", "whats the capital of france",
        "hey, what is the capital of france?", "what is the captial of france",
        "What is the capital of Frnace?",
    ],
)  # fmt: skip
def test_a_question_is_asked_as_people_type_it(form: str) -> None:
    assert form in forms(QUESTION, 60_000)


def test_sums_lose_their_blanks() -> None:
    found = forms("2 + 2")
    assert {"2+2", "2 +2", "2+ 2", "2 + 2", "2+2?"} <= found
    assert all(re.findall(r"\d", text) == ["2", "2"] for text in found)
    assert "2+2+2" in forms("2 + 2 + 2")


def test_one_word_is_asked_before_and_after() -> None:
    found = forms(QUESTION + " Answer in one word.")
    assert any(text.lower().startswith("in one word: what") for text in found)
    assert any(text.endswith("Just one word, please.") for text in found)


def test_what_is_copied_stays() -> None:
    assert all(text.count(KEPT) == 1 for text in forms(f"My name is {KEPT}."))


def test_a_typing_error_is_one_edit_and_no_known_word_nor_another_name() -> None:
    generator = random.Random(1)
    for _ in range(5000):
        wrong = typing_error("Austria", generator)
        assert abs(len(wrong) - len("Austria")) <= 1
        assert wrong == "Austria" or wrong.lower() not in KNOWN_WORDS
    assert "nauru" in KNOWN_WORDS
    assert all(typing_error("Naurru", generator) != "Nauru" for _ in range(3000))
