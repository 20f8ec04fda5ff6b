import sys
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer import pre_tokenizers
from src.tokenizer.pre_tokenizers import (
    DIGITS_THEN_GPT_2,
    GPT_2,
    LLAMA_3,
    METASPACE_WORDS,
    PreTokenizer,
    is_unassigned,
)

SPACES = " \t\n\r\x0b\x0c\x1c\x85\xa0\u2028\u3000"
LIVELY = st.text(
    st.sampled_from("ab\u2581 Z09'st.!-é日😀\ufffd\ud7ff\u0378" + SPACES), max_size=60
)


PRE_TOKENIZERS = {
    "Llama 3": LLAMA_3, "GPT-2": GPT_2, "digits": DIGITS_THEN_GPT_2,
    "marked words": METASPACE_WORDS,
}  # fmt: skip


def pieces(text: str, pre_tokenizer: PreTokenizer = LLAMA_3) -> list[str]:
    return [piece for part in pre_tokenizer.split(text) for piece in part]


@pytest.mark.parametrize(
    ("pre_tokenizer", "text", "expected"),
    [
        (LLAMA_3, "", []),
        (LLAMA_3, "Hello, world!", ["Hello", ",", " world", "!"]),
        (
            LLAMA_3,
            "a  b",
            ["a", " ", " b"],
        ),  # the look-ahead: the last space goes with the word
        (LLAMA_3, "a   b", ["a", "  ", " b"]),
        (LLAMA_3, "a  ", ["a", "  "]),
        (LLAMA_3, "a \n b", ["a", " \n", " b"]),
        (LLAMA_3, "a\n\n  b", ["a", "\n\n", " ", " b"]),
        (LLAMA_3, "a\r\nb", ["a", "\r\n", "b"]),
        (LLAMA_3, "I'm we'LL 'tis", ["I", "'m", " we", "'LL", " '", "tis"]),
        (LLAMA_3, "'s'S'ſ", ["'s", "'S", "'ſ"]),  # U+017F folds to s
        (LLAMA_3, "12345 678", ["123", "45", " ", "678"]),
        (LLAMA_3, "x!!\n\ny", ["x", "!!\n\n", "y"]),
        (LLAMA_3, " \t\tx", [" \t", "\tx"]),
        (LLAMA_3, "\u00a0x\u3000\u3000y", ["\u00a0x", "\u3000", "\u3000y"]),
        (LLAMA_3, "日本語 テキスト", ["日本語", " テキスト"]),
        (LLAMA_3, "😀😀a", ["😀😀", "a"]),
        (LLAMA_3, "٣٤٥٦", ["٣٤٥", "٦"]),
        (LLAMA_3, "e\u0301t", ["e", "\u0301t"]),  # a combining mark is no letter
        (LLAMA_3, "x\x1cy", ["x", "\x1cy"]),  # a space for str.isspace, none for Unicode
        (GPT_2, "I'm we'LL 'tis", ["I", "'m", " we", "'", "LL", " '", "tis"]),
        (GPT_2, "12345 678", ["12345", " 678"]),
        (GPT_2, "a  1", ["a", " ", " 1"]),
        (GPT_2, "a\n\nb", ["a", "\n", "\n", "b"]),
        (GPT_2, "a.\n b", ["a", ".", "\n", " b"]),
        (DIGITS_THEN_GPT_2, "12345 678", ["1", "2", "3", "4", "5", " ", "6", "7", "8"]),
        (
            DIGITS_THEN_GPT_2,
            "a  1",
            ["a", "  ", "1"],
        ),  # all spaces before a digit stay together
        (DIGITS_THEN_GPT_2, "a  b", ["a", " ", " b"]),
        (DIGITS_THEN_GPT_2, "x²³ ٣", ["x", "²", "³", " ", "٣"]),
        (DIGITS_THEN_GPT_2, "'s1's", ["'s", "1", "'s"]),
        (
            METASPACE_WORDS,
            "▁▁ab▁c▁",
            ["▁▁ab", "▁c", "▁"],
        ),  # words begin with their spaces
    ],
)
def test_texts_split_into_the_pieces_that_each_pattern_finds(
    pre_tokenizer, text, expected
):
    assert pieces(text, pre_tokenizer) == expected


def test_a_character_newer_than_unicode_16_is_no_letter_whatever_regex_knows():
    """U+088F became a letter in Unicode 17.0, U+323B0 an ideograph."""
    assert pieces("a\u088fb \u088f\u088f") == ["a", "\u088fb", " \u088f\u088f"]
    assert pieces("日\U000323b0本") == ["日", "\U000323b0本"]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@given(text=st.text())
def test_the_pieces_join_to_the_text(name, text):
    assert "".join(pieces(text, PRE_TOKENIZERS[name])) == text


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@given(text=LIVELY, part_chars=st.integers(1, 5))
def test_cutting_a_text_into_parts_changes_no_piece(name, text, part_chars):
    pre_tokenizer = PRE_TOKENIZERS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pre_tokenizers, "PART_CHARS", part_chars)
        in_parts = pieces(text, pre_tokenizer)
    assert in_parts == pre_tokenizer.pattern.findall(text)


def test_a_long_text_is_handed_out_in_parts():
    text = "word and word. " * 40_000
    parts = list(LLAMA_3.split(text))
    assert len(parts) > 5
    assert max(sum(map(len, part)) for part in parts) < pre_tokenizers.PART_CHARS + 16
    assert [piece for part in parts for piece in part] == LLAMA_3.pattern.findall(text)


def test_the_tables_of_newer_code_points_ascend_up_to_the_unicode_of_this_python():
    for bounds in (pre_tokenizers._BOUNDS_IN_16, pre_tokenizers._BOUNDS_AFTER_16):
        assert sorted(set(bounds)) == bounds
    assert tuple(map(int, unicodedata.unidata_version.split("."))) < (18, 1)


@pytest.mark.parametrize(("first", "unassigned"), [("\u0897", False), ("\u088f", True)])
@pytest.mark.parametrize("known", ["Cn", "Lo"])
def test_what_an_older_or_newer_python_knows_changes_nothing(
    monkeypatch, first, unassigned, known
):
    """U+0897 is of Unicode 16.0, U+088F of 17.0."""
    monkeypatch.setattr("unicodedata.category", lambda _: known)
    assert is_unassigned(first) is unassigned


@pytest.mark.parametrize("name", [r"\p{Cn}", r"\p{L}", r"\p{N}", r"\s"])
def test_every_code_point_is_classed_as_tiktoken_classes_it(name):
    tiktoken = pytest.importorskip("tiktoken", reason="needs the oracle extra")
    ranks = {bytes([byte]): byte for byte in range(256)}
    oracle = tiktoken.Encoding(
        "class", pat_str=name, mergeable_ranks=ranks, special_tokens={}
    )
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))
    unassigned = {*filter(is_unassigned, everything)}
    if name == r"\p{Cn}":
        ours = unassigned
    else:
        ours = set(regex.findall(name, everything)) - unassigned
    assert ours == set(oracle.decode(oracle.encode_ordinary(everything)))
