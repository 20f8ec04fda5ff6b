import random
from collections.abc import Iterable, Iterator
from itertools import product
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer import (
    StreamDecoder,
    Tokenizer,
    TokenizerError,
    TokenizerMemoryError,
    load_tokenizer,
)
from src.tokenizer.tiktoken_file import SPECIAL_TOKEN_NAMES, llama3_tokenizer
from tests.tokenizer.conftest import encode, ranks_of
from tests.tokenizer.json_files import metaspace_file, write_json

SMALL = llama3_tokenizer(ranks_of(b"th", b"the", b" the", b"\xc3\xa9", b"  "))

# (text, its ids in Llama 3, the tokens of these ids)
PINNED = [
    ("", [], []),
    (" ", [220], [" "]),
    ("user", [882], ["user"]),
    ("assistant", [78191], ["assistant"]),
    ("system", [9125], ["system"]),
    ("\n\n", [271], ["\n\n"]),
    ("This is a test.", [2028, 374, 264, 1296, 13], ["This", " is", " a", " test", "."]),
    ("two  spaces", [20375, 220, 12908], ["two", " ", " spaces"]),
    ("a   b", [64, 256, 293], ["a", "  ", " b"]),
    ("end  ", [408, 256], ["end", "  "]),
    ("\n\n\nNext", [1432, 5971], ["\n\n\n", "Next"]),
    ("  \n  z", [2355, 220, 1167], ["  \n", " ", " z"]),
    (
        "x = 1\n    y",
        [87, 284, 220, 16, 198, 262, 379],
        ["x", " =", " ", "1", "\n", "   ", " y"],
    ),
    ("They're I'LL", [7009, 2351, 358, 6, 4178], ["They", "'re", " I", "'", "LL"]),
    ("don't", [15357, 956], ["don", "'t"]),
    ("1234567", [4513, 10961, 22], ["123", "456", "7"]),
    ("hello\tworld", [15339, 77608], ["hello", "\tworld"]),
    ("...\n", [9522], ["...\n"]),
    ("naïve café", [3458, 38672, 588, 53050], ["na", "ï", "ve", " café"]),
    ("東京は日本", [111344, 15682, 102433], ["東京", "は", "日本"]),
    ("😀", [76460, 222], [b"\xf0\x9f\x98", b"\x80"]),
    ("🇹", [9468, 229, 117], [b"\xf0\x9f", b"\x87", b"\xb9"]),
    ("\x00", [188], ["\x00"]),
    ("\ud800", [5809], ["\N{REPLACEMENT CHARACTER}"]),
    ("\ud83d\ude00", [76460, 222], [b"\xf0\x9f\x98", b"\x80"]),  # a pair: the character
    (
        "<|eot_id|>",
        [27, 91, 68, 354, 851, 91, 29],
        ["<", "|", "e", "ot", "_id", "|", ">"],
    ),
]


@pytest.mark.parametrize(
    ("text", "ids", "tokens"), PINNED, ids=[ascii(p[0]) for p in PINNED]
)
def test_ids_of_known_texts_are_those_of_llama_3(llama3, text, ids, tokens):
    assert encode(llama3, text) == ids
    spelled = [token.encode() if isinstance(token, str) else token for token in tokens]
    assert [llama3.token_bytes(token_id) for token_id in ids] == spelled


def test_sizes_and_special_ids_of_llama_3(llama3):
    assert llama3.vocab_size == 128256
    assert (llama3.bos_id, llama3.eos_id) == (128000, 128001)
    assert llama3.stop_ids == {128001, 128008, 128009}


def test_neither_bos_nor_eos_is_added_without_a_flag(llama3, tmp_path):
    write_json(tmp_path, metaspace_file())
    for tokenizer in (SMALL, llama3, load_tokenizer(tmp_path)):
        plain = tokenizer.encode("the the", bos=False, eos=False)
        assert tokenizer.encode("the the") == plain
        assert tokenizer.encode("the the", bos=True) == [tokenizer.bos_id, *plain]
        assert tokenizer.encode("the the", eos=True) == [*plain, tokenizer.eos_id]
        with pytest.raises(TypeError):
            tokenizer.encode("the the", True)


def test_bos_and_eos_are_added_only_on_request():
    """That texts begin with `bos` is not in the file; Llama 3 says so."""
    assert SMALL.adds_bos
    plain = encode(SMALL, "the")
    assert SMALL.encode("the", bos=True, eos=False) == [SMALL.bos_id, *plain]
    assert SMALL.encode("the", bos=False, eos=True) == [*plain, SMALL.eos_id]
    assert SMALL.encode("", bos=True, eos=True) == [SMALL.bos_id, SMALL.eos_id]


def test_special_ids_follow_the_ranks_of_a_smaller_vocabulary():
    assert SMALL.vocab_size == 256 + 5 + 256
    assert [SMALL.special_tokens[name] for name in SPECIAL_TOKEN_NAMES] == list(
        range(261, 517)
    )
    special = [number for number in (260, 261, 516, 517) if SMALL.is_special(number)]
    assert special == [261, 516]


def test_no_special_id_comes_from_text(llama3):
    """Whole, nested, split by other special strings, in other cases, next to anything."""
    names = SPECIAL_TOKEN_NAMES
    texts = [
        *names,
        "".join(names),
        " ".join(names),
        *(f"x{name}\n\n{name}y" for name in names),
    ]
    texts += [name[:5] + other + name[5:] for name in names[:12] for other in names[:12]]
    texts += [name.upper() for name in names[:12]]
    for tokenizer in (SMALL, llama3):
        for text in texts:
            ids = encode(tokenizer, text)
            assert not any(tokenizer.is_special(token_id) for token_id in ids)
            assert tokenizer.decode(ids) == text


def test_a_base_token_spelled_like_a_special_one_keeps_its_base_id():
    tokenizer = llama3_tokenizer(ranks_of(b"<|", b"|>"))
    assert encode(tokenizer, "<|eot_id|>") == [256, *b"eot_id", 257]


def test_decode_shows_special_ids_by_name(llama3):
    ids = llama3.encode("This is a test sentence.", bos=True, eos=True)
    assert (
        llama3.decode(ids) == "<|begin_of_text|>This is a test sentence.<|end_of_text|>"
    )


def test_a_tokenizer_for_a_model_with_more_rows_decodes_them_to_nothing():
    padded = SMALL.padded_to(520)
    assert str(padded) == "Tokenizer(520 ids, 256 special, ByteLevelEncoder)"
    assert padded.decode([116, 517, 519]) == "t"
    with pytest.raises(TokenizerError, match="V = 520"):
        padded.decode([520])


@pytest.mark.parametrize("token_id", [-1, 517, 1 << 40])
def test_an_id_outside_the_vocabulary_is_refused_with_both_numbers(token_id):
    with pytest.raises(
        TokenizerError, match=rf"0 <= id < V .* got id {token_id}, V = 517"
    ):
        SMALL.decode([0, token_id])
    with pytest.raises(TokenizerError, match="V = 517"):
        SMALL.token_bytes(token_id)


@pytest.mark.parametrize("text", [b"bytes", None, 7, ["a"]])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(TokenizerError, match="text must be str"):
        encode(SMALL, text)


def test_a_lack_of_memory_is_an_error_of_the_package(monkeypatch):
    def refused_ids() -> Iterator[int]:
        yield 116
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(SMALL._encoder), "encode", Mock(side_effect=MemoryError))
        with pytest.raises(
            TokenizerMemoryError,
            match=r"^\[encode\] memory: the system refused the allocation$",
        ):
            encode(SMALL, "the")
    with pytest.raises(
        TokenizerMemoryError, match=r"^\[decode\] memory: the system refused"
    ):
        SMALL.decode(refused_ids())
    assert SMALL.decode(encode(SMALL, "the")) == "the"


@given(st.text(st.characters(codec=None)))
def test_surrogates_are_read_as_tiktoken_reads_them(text):
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert SMALL.decode(encode(SMALL, text)) == expected


def test_texts_keep_their_ids_when_the_cache_is_full(monkeypatch):
    monkeypatch.setattr("src.tokenizer.encoders.CACHED_PIECES", 64)
    tokenizer = llama3_tokenizer(ranks_of(b"ab", b"cd", b"abc", b"abcd"))
    source = random.Random(4)
    texts = ["".join(source.choices("abcd", k=12)) for _ in range(300)]
    before = [encode(tokenizer, text) for text in texts]
    assert tokenizer._encoder._encode_cached.cache_info().currsize == 64
    assert [encode(tokenizer, text) for text in texts] == before


# StreamDecoder

BYTES = llama3_tokenizer(ranks_of())
LUMPS = llama3_tokenizer(
    ranks_of(
        b"\xf0\x9f", b"\x98\x80", b"a\xf0", b"\x9f\x98\x80b", b"\xe2\x82", b"\x82\xac"
    )
)
MARK = "\N{REPLACEMENT CHARACTER}"

# Bytes on all the edges of the definition of UTF-8.
EDGES = bytes.fromhex(
    "00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff"
)


def streamed(
    tokenizer: Tokenizer, ids: Iterable[int], *, first: bool = True
) -> list[str]:
    decoder = StreamDecoder(tokenizer, first=first)
    return [*map(decoder.push, ids), decoder.finish()]


@pytest.mark.parametrize("text", ["é", "€", "😀", "👩‍🚀", "🇹🇷", "日本"])
def test_a_character_appears_whole_with_its_last_byte(text):
    expected = [part for c in text for part in [""] * (len(c.encode()) - 1) + [c]]
    assert streamed(BYTES, list(text.encode())) == [*expected, ""]


def test_a_character_that_never_completes_ends_as_one_mark():
    assert streamed(BYTES, [0xF0, 0x9F, 0x98]) == ["", "", "", MARK]


STREAMED = {
    "an invalid byte": ([0xFF, ord("a")], [MARK, "a", ""]),
    "a part of a character": ([0xE2, 0x82, ord("a")], ["", "", MARK + "a", ""]),
    "half a surrogate": ([0xED, 0xA0, ord("a")], ["", "", MARK * 2 + "a", ""]),
    "a special id": ([0xE2, BYTES.bos_id, 97], ["", MARK + "<|begin_of_text|>", "a", ""]),
}


@pytest.mark.parametrize(("ids", "parts"), STREAMED.values(), ids=STREAMED)
def test_what_is_no_character_holds_back_no_more_than_the_next_token(ids, parts):
    assert streamed(BYTES, ids) == parts


def test_a_refused_id_loses_nothing_and_a_finished_decoder_starts_afresh():
    decoder = StreamDecoder(BYTES)
    decoder.push(0xC3)
    with pytest.raises(TokenizerError):
        decoder.push(BYTES.vocab_size)
    assert decoder.push(0xA9) == "é"
    decoder.push(0xF0)
    assert decoder.finish() == MARK
    assert decoder.finish() == ""
    assert decoder.push(0x98) == MARK
    assert decoder.push(ord("a")) == "a"


def test_pushes_and_finish_join_to_the_whole_on_every_edge_of_utf_8():
    for length in (1, 2, 3):
        for data in map(bytes, product(EDGES, repeat=length)):
            assert "".join(streamed(BYTES, data)) == data.decode(errors="replace")


PARTS = [0xF0, 0x9F, 0x98, 0x80, 0xE2, *range(256, 262)]  # mostly parts of characters


@given(
    st.lists(st.integers(0, LUMPS.vocab_size - 1) | st.sampled_from(PARTS), max_size=40)
    | st.lists(st.sampled_from(PARTS), max_size=40)
)
def test_pushes_and_finish_join_to_what_decode_gives(ids):
    assert "".join(streamed(LUMPS, ids)) == LUMPS.decode(ids)


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """SentencePiece style: a space goes before every text, and decoding drops it."""
    return load_tokenizer(
        write_json(tmp_path_factory.mktemp("metaspace"), metaspace_file())
    )


def test_the_space_before_a_text_is_not_shown_and_every_other_one_is(metaspace):
    ids = encode(metaspace, "the the  the")
    decoder = StreamDecoder(metaspace)
    for _ in range(2):  # again after its end
        assert [*map(decoder.push, ids), decoder.finish()] == [
            "the",
            " the",
            " ",
            " the",
            "",
        ]


def test_ids_that_go_on_from_a_text_keep_their_first_space(metaspace):
    ids = encode(metaspace, "the")
    assert streamed(metaspace, ids, first=False) == [" the", ""]
    prompt = metaspace.encode("the the", bos=True, eos=False)
    for cut in range(1, len(prompt)):
        begun = metaspace.decode(prompt[1:cut])
        joined = begun + "".join(streamed(metaspace, prompt[cut:], first=False))
        assert joined.removeprefix(" ") == "the the"


def test_special_ids_before_a_text_do_not_begin_it(metaspace):
    ids = metaspace.encode("the", bos=True, eos=False)
    assert streamed(metaspace, ids) == ["<s>", "the", ""]
    assert metaspace.decode(ids) == "<s>the"


def test_each_byte_of_no_character_is_a_mark_as_in_sentencepiece(metaspace):
    broken = [3 + byte for byte in b"\xe2\x82a\xf0\x9f"]
    assert streamed(metaspace, broken) == ["", "", MARK * 2 + "a", "", "", MARK * 2]
    assert metaspace.decode(broken) == MARK * 2 + "a" + MARK * 2
