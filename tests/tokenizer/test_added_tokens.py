import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer import TokenizerError
from src.tokenizer.added_tokens import AddedToken, AddedTokenFinder
from tests.tokenizer.growth import steps_of


def found(finder: AddedTokenFinder, text: str) -> list[str | int]:
    parts = finder.split(text)
    return [part if token_id is None else token_id for part, _, token_id in parts]


def finder(*texts: str, special: tuple[str, ...] = ()) -> AddedTokenFinder:
    numbered = enumerate((*texts, *special))
    return AddedTokenFinder(
        AddedToken(text, n, special=text in special) for n, text in numbered
    )


def test_the_leftmost_token_is_found_and_of_several_there_the_longest():
    assert found(finder("ab", "abc", "bcd"), "xabcdab") == ["x", 1, "d", 0]
    assert found(finder("a", "aa"), "aaa") == [1, 0]
    # No letter is a pattern.
    assert found(finder("]", "^-", "[^"), "x[^-]") == [
        "x",
        2,
        "-",
        0,
    ]


def test_a_special_token_stays_text_and_hides_what_is_inside_of_it():
    assert found(finder("tool", special=("<tool>",)), "<tool>tool") == ["<tool>", 0]


def test_without_tokens_a_text_is_one_segment_and_an_empty_one_is_none():
    assert found(finder(), "text") == ["text"]
    assert found(finder("x"), "") == []


@given(st.text("abc<> ", max_size=40))
def test_segments_join_to_the_text(text):
    tokens = [AddedToken("ab", 0, False), AddedToken("<", 1, False, False, True, True)]
    split = list(AddedTokenFinder(tokens).split(text))
    assert "".join(part for part, _, _ in split) == text
    assert all(part and text[start:].startswith(part) for part, start, _ in split)


def one_by_one(texts: list[str], text: str) -> list[str | int]:
    """The definition: at each place the longest of the texts that start there."""
    parts: list[str | int] = []
    plain = ""
    at = 0
    while at < len(text):
        here = [token for token in texts if text.startswith(token, at)]
        if here:
            longest = max(here, key=len)
            parts += [plain] * bool(plain) + [texts.index(longest)]
            plain = ""
            at = at + len(longest)
        else:
            plain = plain + text[at]
            at = at + 1
    return parts + [plain] * bool(plain)


@given(
    st.lists(st.text("abc", min_size=1, max_size=6), unique=True),
    st.text("abcd", max_size=60),
)
def test_the_same_tokens_are_found_as_by_trying_each(texts, text):
    assert found(finder(*texts), text) == one_by_one(texts, text)


@pytest.mark.parametrize("text_of", [lambda n: "a" * n + "b", lambda n: "a" + "0" * n])
def test_work_does_not_grow_with_the_tokens(text_of):
    few, many = (finder(*map(text_of, range(count))) for count in (30, 120))
    steps = [
        steps_of(lambda tokens=tokens: list(tokens.split("a" * 1000)))
        for tokens in (few, many)
    ]
    assert steps[0] == steps[1]


def test_spaces_around_tokens_are_looked_through_once():
    """They were looked through at each token: a minute and more."""
    token = AddedToken(" ", 0, False, takes_left=True, takes_right=True)
    start = time.process_time()
    segments = list(AddedTokenFinder([token]).split(" " * 200_000))
    assert time.process_time() - start < 10
    assert "".join(part for part, _, _ in segments) == " " * 200_000


def test_a_token_of_more_letters_than_the_limit_is_refused():
    longest = "ab" * 64
    assert found(finder(longest), f"{longest}b") == [0, "b"]
    with pytest.raises(
        TokenizerError, match="expected at most 128 letters in each, got 129"
    ):
        finder(f"{longest}b")
