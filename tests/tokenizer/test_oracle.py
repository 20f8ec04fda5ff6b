"""Ids compared with tiktoken's, on Meta's file."""

import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from src.tokenizer import Tokenizer
from tests.tokenizer.strings import KINDS, sample, strings

pytestmark = pytest.mark.oracle

SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\x0b", "\x1c", "\x85", "\u00a0", "\u2028"]
WORDS = ["a", "I'm", "word", "Wörter", "123", "1234567", "!", "...", "'s", "'LL", "日本", "😀", "_"]


def assert_same_ids(ours: Tokenizer, oracle: Any, text: str) -> None:
    ids, expected = (
        ours.encode(text, bos=False, eos=False),
        oracle.encode(text, disallowed_special=()),
    )
    assert ids == expected, ascii(text[:200])
    assert ours.decode(ids) == oracle.decode(expected)


def test_every_two_spaces_between_every_two_words(llama3: Tokenizer, llama3_tiktoken: Any) -> None:
    for left in WORDS:
        for right in WORDS:
            text = "".join(f"{left}{a}{b}{right}" for a in SPACES for b in SPACES)
            assert_same_ids(llama3, llama3_tiktoken, text)


@pytest.mark.slow
def test_every_code_point_alone_between_letters_and_after_a_space(
    llama3: Tokenizer, llama3_tiktoken: Any
) -> None:
    for start in range(0, sys.maxunicode + 1, 0x1000):
        text = "".join(f"{chr(c)}x{chr(c)}\n {chr(c)}" for c in range(start, start + 0x1000))
        assert_same_ids(llama3, llama3_tiktoken, text)


def test_every_token_that_is_text(llama3: Tokenizer, llama3_tiktoken: Any) -> None:
    tokens = [llama3.token_bytes(token_id) for token_id in range(128000)]
    for start in range(0, 128000, 1000):
        text = "".join(token.decode(errors="ignore") for token in tokens[start : start + 1000])
        assert_same_ids(llama3, llama3_tiktoken, text)


@pytest.mark.parametrize("size", [127, 128, 129, 1000, 20_000])
@pytest.mark.parametrize(
    "unit", ["a", " ", "\n", "\t", "😀", "中", "é", "0", "-", "=-", "the", "\x00", "  x", "ab\n"]
)
def test_one_string_over_and_over(
    llama3: Tokenizer, llama3_tiktoken: Any, unit: str, size: int
) -> None:
    assert_same_ids(llama3, llama3_tiktoken, (unit * size)[:size])
    assert_same_ids(llama3, llama3_tiktoken, "x" + (unit * size)[:size] + "y")


def long_pieces() -> list[str]:
    source = random.Random(11)
    alphabets = [
        "ab", "abcdefghijklmnopqrstuvwxyz", "абвгдежзиклмнопрст", "中文字日本語の", "😀😁🚀🇹🇷",
    ]  # fmt: skip
    sizes = (60, 81, 200, 1000, 20_000)
    return ["".join(source.choices(letters, k=size)) for letters in alphabets for size in sizes]


@pytest.mark.parametrize("text", long_pieces(), ids=lambda text: f"{text[:2]}-{len(text)}")
def test_long_pieces_of_random_letters(llama3: Tokenizer, llama3_tiktoken: Any, text: str) -> None:
    assert_same_ids(llama3, llama3_tiktoken, text)


@given(text=st.text(st.characters(codec=None), max_size=80))
@settings(max_examples=300)
def test_any_string_even_with_surrogates(
    llama3: Tokenizer, llama3_tiktoken: Any, text: str
) -> None:
    assert_same_ids(llama3, llama3_tiktoken, text)


@given(text=st.binary(max_size=200).map(lambda data: data.decode(errors="replace")))
@settings(max_examples=200)
def test_random_bytes_as_text(llama3: Tokenizer, llama3_tiktoken: Any, text: str) -> None:
    assert_same_ids(llama3, llama3_tiktoken, text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_strings_of_each_kind(llama3: Tokenizer, llama3_tiktoken: Any, kind: str) -> None:
    for text in strings(kind, seed=1, count=KINDS[kind] // 100):
        assert_same_ids(llama3, llama3_tiktoken, text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_strings(llama3: Tokenizer, llama3_tiktoken: Any, kind: str) -> None:
    encode, expect = llama3.encode, llama3_tiktoken.encode_ordinary
    for text in strings(kind, seed=2, count=sample(kind)):
        if encode(text, bos=False, eos=False) != expect(text):
            assert_same_ids(llama3, llama3_tiktoken, text)
