import json
import re
import unicodedata
from functools import cache

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from src.untrusted import escape_controls, escape_line, json_controls, replace_surrogates

any_text = st.text(
    st.characters()
    | st.sampled_from(
        "\x1b\x9b\x07\r\n\t\x7f\u202e\u2066\u2028\u200f\udc9b\ufeff\u200b\u200d\U000e0041"
    ),
    max_size=40,
)
BIDI_CONTROLS = set(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
# Needed by emoji and by the scripts of India, Iran and Mongolia.
JOINERS_AND_SELECTORS = "[\u200c\u200d\ufe00-\ufe0f\u180b-\u180d\u180f]"
EVERYTHING = "".join(map(chr, range(0x110000)))


@cache
def invisible() -> set[str]:
    kinds = (
        r"\p{Default_Ignorable_Code_Point}|\p{Noncharacter_Code_Point}|[\ufff9-\ufffb]"
    )
    ignorable = regex.findall(kinds, EVERYTHING)
    return set(ignorable) - set(regex.findall(JOINERS_AND_SELECTORS, EVERYTHING))


@cache
def dangerous() -> set[str]:
    kinds = ("Cc", "Cs", "Zl", "Zp")
    controls = {c for c in EVERYTHING if unicodedata.category(c) in kinds} - set("\n\t")
    return controls | BIDI_CONTROLS | invisible()


@given(any_text, any_text)
def test_a_sequence_split_over_two_parts_is_escaped_as_if_whole(a, b):
    assert escape_controls(a) + escape_controls(b) == escape_controls(a + b)


@given(any_text, st.integers(1, 30))
def test_a_limited_line_is_cut_to_the_limit(text, limit):
    assert len(escape_line(text, limit)) <= limit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb", r"a\x0db"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\udcff", "\ufffd"),
        ("tab\tand\nline", "tab\tand\nline"),
        (
            "👨\u200d👩\u200d👧 ❤\ufe0f 🇹🇷 é 漢字 می\u200cخواهم",
            "👨\u200d👩\u200d👧 ❤\ufe0f 🇹🇷 é 漢字 می\u200cخواهم",
        ),
        ("pass\u200bword\ufeff", r"pass\u200bword\ufeff"),
        ("a\U000e0041\U000e0042\U000e007f", r"a\U000e0041\U000e0042\U000e007f"),
        ("a\U000e0100", r"a\U000e0100"),
    ],
)
def test_what_is_shown_for_known_sequences(text, shown):
    assert escape_controls(text) == shown


def test_every_character_of_unicode_is_decided():
    shown = escape_controls(EVERYTHING)
    line = escape_line(EVERYTHING)
    assert not set(shown) & dangerous()
    assert not set(line) & (dangerous() | set("\n\t"))
    assert line.splitlines() == [line]
    escaped = re.findall(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}", shown)
    assert len(escaped) == len(BIDI_CONTROLS | invisible()) + 63 + 2
    assert len(invisible()) > 4000
    harmless = "".join(c for c in EVERYTHING if c not in dangerous())
    assert escape_controls(harmless) == harmless
    assert replace_surrogates(EVERYTHING).encode()


def test_every_character_in_json_means_the_same():
    encodable = re.sub("[\ud800-\udfff]", "", EVERYTHING)
    written = json_controls(json.dumps(encodable, ensure_ascii=False))
    assert json.loads(written) == encodable
    assert not set(written) & dangerous()
