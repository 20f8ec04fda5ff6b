"""Words wrapped at blanks: the rows that a terminal shows of a text, however it comes in
parts.
"""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.cli.wrapping import WordWrap, character_width, wrapped_line

_MOVE = re.compile(r"\x1b\[(\d+)D\x1b\[K")


def rows_shown(written: str, columns: int) -> list[str]:
    """Returns the rows of a terminal that gives each character its width."""
    rows: list[list[str]] = [[]]
    place = 0
    while place < len(written):
        move = _MOVE.match(written, place)
        if move is not None:
            back = int(move[1])
            while back > 0:
                back -= character_width(rows[-1].pop())
            assert back == 0  # no other word was erased
            place = move.end()
            continue
        character = written[place]
        place += 1
        if character == "\n":
            rows.append([])
            continue
        if character == "\t":
            rows[-1] += " " * (8 - sum(map(character_width, rows[-1])) % 8)
            continue
        if sum(map(character_width, rows[-1])) + character_width(character) > columns:
            rows.append([])
        rows[-1].append(character)
    return ["".join(row) for row in rows]


def wrapped(parts: list[str], columns: int) -> list[str]:
    wrap = WordWrap()
    return rows_shown("".join(wrap.wrapped(part, columns) for part in parts), columns)


CASES = [
    ("one two three four five six", ["one two three four", "five six"]),
    ("one two three four\nfive", ["one two three four", "five"]),
    ("1234567890123456789 1", ["1234567890123456789", "1"]),
    ("12345678901234567890 1", ["12345678901234567890", "1"]),  # longer than a row
    ("a 123456789012345678901234567890 b", ["a", "12345678901234567890", "1234567890 b"]),
    ("one  two\n\n  three", ["one  two", "", "  three"]),
    ("un café élégant est ouvert", ["un café élégant est", "ouvert"]),
    ("a cafe\u0301 e\u0301le\u0301gant est ouvert",
     ["a cafe\u0301 e\u0301le\u0301gant est", "ouvert"]),
    ("日本語の文章は空白がない。はい", ["日本語の文章は空白", "がない。はい"]),
    ("日本語の文章は空、。はい。", ["日本語の文章は", "空、。はい。"]),
    ("in 2024 年 1234567890 月", ["in 2024 年", "1234567890 月"]),
    ("yes 😀 no 😀 yes 😀😀😀", ["yes 😀 no 😀 yes 😀", "😀😀"]),
    ("a b c d e f g h i 👩‍👩‍👧 k", ["a b c d e f g h i", "👩‍👩‍👧 k"]),
    ("a b c d e f g h i 🇹🇷 k", ["a b c d e f g h i", "🇹🇷 k"]),
    ("```\none two three four five six\n```\none two three four five",
     ["```", "one two three four f", "ive six", "```", "one two three four", "five"]),
    ("~~~\n```\none two three four five six\n~~~",
     ["~~~", "```", "one two three four f", "ive six", "~~~"]),
    ("    one two three four five", ["    one two three fo", "ur five"]),
    ("    - one two three four", ["    - one two three", "four"]),
    ("| one | two | three | four |", ["| one | two | three ", "| four |"]),
    ("- one two three four five", ["- one two three", "four five"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rows"), CASES)
def test_rows_end_at_blanks_in_whatever_parts_a_text_comes(text, rows):
    by_words = re.findall(r"\s*\S+|\s+", text)
    for parts in ([text], list(text), by_words, re.findall(".{1,3}", text, re.DOTALL)):
        shown = wrapped(parts, 20)
        # What is longer than a row is left to the terminal, whose last column stays free
        # elsewhere.
        assert shown == rows


@given(
    st.lists(st.text("ab \n\té漢😀\u0301\u200d\ufe0f`-|"), max_size=30),
    st.integers(20, 40),
)
def test_no_word_is_lost_repeated_or_erased(parts, columns):
    shown = "".join(wrapped(parts, columns))
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", "".join(parts))


@given(st.lists(st.text("abc", min_size=1, max_size=15), min_size=1), st.integers(20, 60))
def test_prose_has_as_few_rows_as_it_can_and_no_blanks_at_their_ends(words, columns):
    text = " ".join(words)
    rows = wrapped([text], columns)
    assert " ".join(rows) == text
    assert rows == wrapped_line(text, columns).split("\n")
    for row, following in pairwise(rows):
        assert row == row.rstrip()
        assert len(row) < columns <= len(row) + 1 + len(following.split(" ")[0])


@pytest.mark.parametrize("columns", [0, 1, 19])
def test_a_narrow_window_and_one_of_unknown_size_get_the_text_as_it_comes(columns):
    text = "one two three four five six seven eight"
    assert "".join(WordWrap().wrapped(part, columns) or " " for part in text) == text
    assert WordWrap().wrapped(text, columns) == text
    assert wrapped_line(text, columns) == text


def test_a_window_that_changes_its_size_changes_the_rows_that_follow():
    wrap = WordWrap()
    words = "one two three four five six seven eight nine ten "
    written = "".join(wrap.wrapped(part, 30) for part in words)
    assert rows_shown(written, 30) == [
        "one two three four five six",
        "seven eight nine ten",
    ]
    narrow = "".join(wrap.wrapped(part, 20) for part in f"\n{words}")
    expected = [" ", "one two three four", "five six seven", "eight nine ten"]
    assert rows_shown(narrow, 20) == expected
    # The word at the time of the change may stand anywhere: it stays there.
    half = WordWrap()
    assert half.wrapped("one two three four fi", 30) == "one two three four fi"
    assert "\x1b" not in half.wrapped("ve", 20)
