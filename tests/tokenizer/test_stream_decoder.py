from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer import StreamDecoder, Tokenizer, TokenizerError, load_tokenizer
from src.tokenizer.tiktoken_file import llama3_tokenizer
from tests.tokenizer.conftest import ranks_of
from tests.tokenizer.json_files import marked_file, write_json

BYTES = llama3_tokenizer(ranks_of())
LUMPS = llama3_tokenizer(
    ranks_of(b"\xf0\x9f", b"\x98\x80", b"a\xf0", b"\x9f\x98\x80b", b"\xe2\x82", b"\x82\xac")
)
MARK = "\N{REPLACEMENT CHARACTER}"

# Bytes on all the edges of the definition of UTF-8.
EDGES = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*map(decoder.push, ids), decoder.finish()]


def can_still_become_a_character(tail: bytes) -> bool:
    """Tell by trying: bytes that some ending completes to exactly one character."""
    endings = [
        bytes(e) for n in range(1, 4) for e in product(b"\x80\x8f\x90\x9f\xa0\xbf", repeat=n)
    ]
    for ending in endings:
        try:
            if len((tail + ending).decode()) == 1:
                return True
        except UnicodeDecodeError:
            continue
    return False


@pytest.mark.parametrize("text", ["é", "€", "😀", "👩‍🚀", "🇹🇷", "日本"])
def test_a_character_appears_whole_with_its_last_byte(text: str) -> None:
    expected = [part for c in text for part in [""] * (len(c.encode()) - 1) + [c]]
    assert streamed(BYTES, list(text.encode())) == [*expected, ""]


def test_a_character_that_never_completes_ends_as_one_mark() -> None:
    assert streamed(BYTES, [0xF0, 0x9F, 0x98]) == ["", "", "", MARK]


def test_an_invalid_byte_does_not_hold_back_what_follows() -> None:
    assert streamed(BYTES, [0xFF, ord("a")]) == [MARK, "a", ""]
    assert streamed(BYTES, [0xE2, 0x82, ord("a")]) == ["", "", MARK + "a", ""]
    assert streamed(BYTES, [0xED, 0xA0, ord("a")]) == ["", MARK * 2, "a", ""]  # half a surrogate


def test_a_special_id_ends_an_open_character() -> None:
    parts = streamed(BYTES, [0xE2, BYTES.bos_id, ord("a")])
    assert parts == ["", MARK + "<|begin_of_text|>", "a", ""]


def test_a_refused_id_loses_nothing() -> None:
    decoder = StreamDecoder(BYTES)
    decoder.push(0xC3)
    with pytest.raises(TokenizerError):
        decoder.push(BYTES.vocab_size)
    assert decoder.push(0xA9) == "é"


def test_a_finished_decoder_starts_afresh() -> None:
    decoder = StreamDecoder(BYTES)
    decoder.push(0xF0)
    assert decoder.finish() == MARK
    assert decoder.finish() == ""
    assert decoder.push(0x98) == MARK
    assert decoder.push(ord("a")) == "a"


def test_pushes_and_finish_join_to_the_whole_on_every_edge_of_utf_8() -> None:
    for length in (1, 2, 3):
        for data in product(EDGES, repeat=length):
            assert "".join(streamed(BYTES, list(data))) == bytes(data).decode(errors="replace")


def test_only_the_beginning_of_a_character_is_held_back() -> None:
    """What is not yet shown could still become one character, whatever came before."""
    for length in (1, 2, 3):
        for data in product(EDGES, repeat=length):
            decoder = StreamDecoder(BYTES)
            shown = "".join(map(decoder.push, data))
            whole = bytes(data).decode(errors="replace")
            assert whole.startswith(shown)
            if shown != whole:
                assert any(
                    shown == bytes(data[:cut]).decode(errors="replace")
                    and can_still_become_a_character(bytes(data[cut:]))
                    for cut in range(len(data))
                )


@given(st.lists(st.integers(0, LUMPS.vocab_size - 1), max_size=40))
def test_pushes_and_finish_join_to_what_decode_gives(ids: list[int]) -> None:
    assert "".join(streamed(LUMPS, ids)) == LUMPS.decode(ids)


@given(st.lists(st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xE2, *range(256, 262)]), max_size=40))
def test_the_same_for_ids_that_are_mostly_parts_of_characters(ids: list[int]) -> None:
    assert "".join(streamed(LUMPS, ids)) == LUMPS.decode(ids)


@given(st.text())
def test_valid_text_never_shows_a_mark_that_it_does_not_hold(text: str) -> None:
    parts = streamed(LUMPS, LUMPS.encode(text, bos=False, eos=False))
    assert "".join(parts) == text
    assert all(MARK not in part or MARK in text for part in parts)


@pytest.fixture
def marked(tmp_path: Path) -> Tokenizer:
    """SentencePiece style: a space goes before every text, and decoding drops it."""
    return load_tokenizer(write_json(tmp_path, marked_file()))


def streamed_on(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer, first=False)
    return [*map(decoder.push, ids), decoder.finish()]


def test_the_space_before_a_text_is_not_shown_and_every_other_one_is(marked: Tokenizer) -> None:
    ids = marked.encode("the the  the", bos=False, eos=False)
    assert streamed(marked, ids) == ["the", " the", " ", " the", ""]


def test_ids_that_go_on_from_a_text_keep_their_first_space(marked: Tokenizer) -> None:
    ids = marked.encode("the", bos=False, eos=False)
    assert streamed_on(marked, ids) == [" the", ""]
    prompt = marked.encode("the the", bos=True, eos=False)
    for cut in range(1, len(prompt)):
        begun = marked.decode(prompt[1:cut])
        joined = begun + "".join(streamed_on(marked, prompt[cut:]))
        assert joined.removeprefix(" ") == "the the"


def test_special_ids_before_a_text_do_not_begin_it(marked: Tokenizer) -> None:
    ids = marked.encode("the", bos=True, eos=False)
    assert streamed(marked, ids) == ["<s>", "the", ""]
    assert marked.decode(ids) == "<s>the"


def test_a_finished_decoder_drops_the_space_again(marked: Tokenizer) -> None:
    ids = marked.encode("the", bos=False, eos=False)
    decoder = StreamDecoder(marked)
    for _ in range(2):
        assert "".join([*map(decoder.push, ids), decoder.finish()]) == "the"


def test_each_byte_that_is_no_character_is_a_mark_as_sentencepiece_has_it(
    marked: Tokenizer,
) -> None:
    broken = [3 + byte for byte in b"\xe2\x82a\xf0\x9f"]
    assert streamed(marked, broken) == ["", "", MARK * 2 + "a", "", "", MARK * 2]
    assert marked.decode(broken) == MARK * 2 + "a" + MARK * 2
