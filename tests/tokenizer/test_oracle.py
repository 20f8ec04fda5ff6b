"""Ids and texts compared with those of tiktoken, sentencepiece and tokenizers.

Real files of Llama 2 and 3, variants of Llama 2's, and files that `tokenizers` trained.
"""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from src.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from src.tokenizer.sentencepiece_model import read_sentencepiece_model
from tests.support.sentencepiece_writer import NORMAL, USER_DEFINED, model_message
from tests.support.shared_data import shared_data
from tests.tokenizer.conftest import encode, real_tokenizer
from tests.tokenizer.json_files import (
    PREPEND,
    Json,
    added,
    byte_level_file,
    metaspace,
    write_json,
)
from tests.tokenizer.strings import KINDS, sample, strings
from tests.tokenizer.trained_files import (
    ADDED,
    O200K,
    QWEN,
    SMOLLM3,
    TEKKEN,
    mistral,
    oracle,
    smollm2,
    split_by,
    write_both,
)

pytestmark = pytest.mark.oracle

sentencepiece = pytest.importorskip("sentencepiece", reason="needs the oracle extra")

Row = tuple[str, float, int]
Settings = dict[int, Any]
FIRST = metaspace("first", split=False)
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
AT_SPACES = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
TRAINED: dict[str, Callable[[], Json]] = {
    "Qwen": lambda: split_by(QWEN, composes=True),
    "Qwen, added tokens": lambda: split_by(QWEN, composes=True, tokens=ADDED),
    "SmolLM3, OLMo 2": lambda: split_by(SMOLLM3, tokens=ADDED),
    "gpt-oss": lambda: split_by(O200K),
    "gpt-oss, added tokens": lambda: split_by(O200K, tokens=ADDED),
    "Mistral NeMo": lambda: split_by(TEKKEN, whole=True),
    "SmolLM2": smollm2,
    "SmolLM2, added tokens": lambda: smollm2(tokens=ADDED),
    "TinyLlama": lambda: mistral(PREPEND, None),
    "TinyLlama, added tokens": lambda: mistral(PREPEND, None, tokens=ADDED),
    "Mistral v0.3": lambda: mistral(None, FIRST),
    "Mistral v0.3, added tokens": lambda: mistral(None, FIRST, tokens=ADDED),
    "Gemma": lambda: mistral(REPLACE, AT_SPACES, strips=False),
    "Gemma, added tokens": lambda: mistral(
        REPLACE, AT_SPACES, tokens=ADDED, strips=False
    ),
    "always": lambda: mistral(None, metaspace("always", split=True), tokens=ADDED),
    "never": lambda: mistral(None, metaspace("never", split=True)),
}
DEFINED = ("<think>", "▁▁foo", "class de", "▁deff", "😀😀", "▁▁▁x", "é1", "<|im_start|>")
ACROSS = [("e▁t", 5.0, NORMAL), ("x▁", -3.5, NORMAL), ("▁x▁y", -4.0, NORMAL)]


def scored(rows: list[Row], score: Callable[[float], float]) -> list[Row]:
    return [(text, score(s) if kind == NORMAL else s, kind) for text, s, kind in rows]


def without_characters(rows: list[Row]) -> list[Row]:
    """Pieces of which some hold characters that are no piece themselves."""
    return [row for row in rows if row[2] != NORMAL or row[0] not in set("aexyéж")]


VARIANTS: dict[str, Callable[[list[Row]], tuple[list[Row], Settings, Settings]]] = {
    "equal scores": lambda rows: (scored(rows, lambda s: float(int(s) // 50)), {}, {}),
    "one score": lambda rows: (scored(rows, lambda s: 0.0), {}, {}),
    "other scores": lambda rows: (scored(rows, lambda s: (s * 7919) % 30011), {}, {}),
    "no prefix": lambda rows: (rows, {}, {3: 0}),
    "user defined": lambda rows: (
        rows + [(text, 0.0, USER_DEFINED) for text in DEFINED],
        {},
        {},
    ),
    "fewer characters": lambda rows: (without_characters(rows), {}, {}),
    "across words": lambda rows: ([*rows, *ACROSS], {}, {}),
}
# Around what the files add and what is special.
LIVELY = [
    *(
        "<think>",
        "</think>",
        "two words",
        "klass",
        " deff",
        "<tool>",
        "tool",
        "  ",
        " ",
        "x",
    ),
    *(
        "\n",
        "▁",
        "<s>",
        "</s>",
        "<unk>",
        "<0x0A>",
        "é",
        "😀",
        "\x00",
        "12",
        "don't",
        "  foo",
    ),
    *("class de", "é1", "a", "ex", "ya", "   x", " y"),
]


class Pair:
    """A tokenizer of ours and its oracle, which may show an unknown id in another way."""

    def __init__(
        self, ours: Tokenizer, encode: Any, decode: Any, unknown: int | None = None
    ) -> None:
        self.ours = ours
        self.theirs = encode
        self.decode = decode
        self.unknown = unknown

    def check(self, texts: Iterator[str] | list[str]) -> None:
        for text in texts:
            ids = encode(self.ours, text)
            assert ids == self.theirs(text), ascii(text[:200])
            if self.unknown not in ids:
                assert self.ours.decode(ids) == self.decode(ids), ascii(text[:200])


def by_sentencepiece(path: Path) -> Pair:
    theirs = sentencepiece.SentencePieceProcessor(str(path))
    return Pair(load_tokenizer(path.parent), theirs.encode, theirs.decode, unknown=0)


def by_tokenizers(ours: Tokenizer, theirs: Any) -> Pair:
    return Pair(
        ours,
        lambda text: theirs.encode(text, add_special_tokens=False).ids,
        lambda ids: theirs.decode(ids, skip_special_tokens=False),
    )


@pytest.fixture(scope="module")
def meta(llama3: Tokenizer, llama3_tiktoken: Any) -> Pair:
    """Llama 3 by Meta's file, which may hold lone surrogates."""
    return Pair(llama3, llama3_tiktoken.encode_ordinary, llama3_tiktoken.decode)


@pytest.fixture(scope="module", params=["meta", "llama2", "llama2.json", "llama3.json"])
def real(request: pytest.FixtureRequest) -> Pair:
    name, _, kind = request.param.partition(".")
    if name == "meta":
        found: Pair = request.getfixturevalue("meta")
        return found
    if not kind:
        return by_sentencepiece(shared_data("llama2/tokenizer.model"))
    tokenizers = pytest.importorskip("tokenizers", reason="needs the oracle extra")
    file = f"{name}/tokenizer.json"
    theirs = oracle(shared_data(file), tokenizers.Tokenizer)
    return by_tokenizers(real_tokenizer(file), theirs)


@pytest.fixture(scope="module", params=[*VARIANTS, *TRAINED])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    directory = tmp_path_factory.mktemp("made")
    name = request.param
    if name in TRAINED:
        pytest.importorskip("tokenizers", reason="needs the oracle extra")
        theirs = write_both(directory, TRAINED[name]())
        return by_tokenizers(load_tokenizer(directory), theirs)
    pieces = read_sentencepiece_model(shared_data("llama2/tokenizer.model")).pieces
    rows = [(piece.text, piece.score, piece.kind) for piece in pieces]
    path = directory / "tokenizer.model"
    path.write_bytes(model_message(*VARIANTS[name](rows)))
    return by_sentencepiece(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_strings_of_each_kind_on_real_files(real, kind):
    real.check(strings(kind, 1, KINDS[kind] // 1000, surrogates=False))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_strings_on_real_files(real, kind):
    real.check(strings(kind, 2, sample(kind), surrogates=False))


@pytest.mark.parametrize("kind", KINDS)
def test_made_files_give_the_same_ids_and_texts(made, kind):
    made.check(strings(kind, 3, 50 if kind != "long" else 3, surrogates=False))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_strings_on_made_files(made, kind):
    made.check(strings(kind, 4, sample(kind, 20), surrogates=False))


def test_made_files_do_so_around_added_and_special_tokens(made):
    source = random.Random(5)
    made.check(
        ["".join(source.choices(LIVELY, k=source.randint(0, 9))) for _ in range(400)]
    )


def test_any_ids_decode_alike_whole_and_streamed(made):
    """Bytes that are no character too; SentencePiece shows control and unknown pieces by
    name.
    """
    ours = made.ours
    source = random.Random(8)
    first = 0 if made.unknown is None else 3
    for _ in range(500):
        high = source.choice((259, ours.vocab_size))
        ids = source.choices(range(first, high), k=source.randint(0, 8))
        text = ours.decode(ids)
        if first:
            assert text == made.decode(ids)
        decoder = StreamDecoder(ours)
        assert "".join([*map(decoder.push, ids), decoder.finish()]) == text


def test_every_token_decodes_alike(made):
    """After a word, so that no space of a token is the first of a text; of many, each
    tenth.
    """
    word = encode(made.ours, "word")
    size = made.ours.vocab_size
    for token_id in range(0 if made.unknown is None else 3, size, max(1, size // 3000)):
        ids = [*word, token_id]
        assert made.ours.decode(ids) == made.decode(ids)


@pytest.mark.parametrize("seed", range(20))
def test_added_tokens_that_overlap_are_found_alike(tmp_path, seed):
    tokenizers = pytest.importorskip("tokenizers", reason="needs the oracle extra")
    source = random.Random(seed)
    file = byte_level_file()
    first = len(file["model"]["vocab"]) + len(file["added_tokens"])
    names = {"".join(source.choices("ab<", k=source.randint(2, 6))) for _ in range(12)}
    file["added_tokens"] += [
        added(first + n, name, lstrip=source.random() < 0.2, rstrip=source.random() < 0.2)
        for n, name in enumerate(sorted(names))
    ]
    path = write_json(tmp_path, file) / "tokenizer.json"
    pair = by_tokenizers(load_tokenizer(tmp_path), oracle(path, tokenizers.Tokenizer))
    pair.check(
        [
            "".join(source.choices("aaabb< \n", k=source.randint(0, 60)))
            for _ in range(100)
        ]
    )


def test_begin_is_where_tokenizers_puts_it():
    """Of the two files, that of Llama 2 has a template."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the oracle extra")
    ours = real_tokenizer("llama2/tokenizer.json")
    theirs = oracle(shared_data("llama2/tokenizer.json"), tokenizers.Tokenizer)
    expected = theirs.encode("Hello", add_special_tokens=True).ids
    assert ours.encode("Hello", bos=ours.adds_bos, eos=False) == expected
    assert ours.encode("Hello", bos=True, eos=False).count(ours.bos_id) == 1


@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_both_files_of_a_vocabulary_give_the_same_ids_and_texts(name):
    ours, other = (
        real_tokenizer(f"{name}/tokenizer.{kind}") for kind in ("model", "json")
    )
    for kind in KINDS:
        for text in strings(kind, seed=4, count=KINDS[kind] // 4000):
            ids = ours.encode(text, bos=True, eos=True)
            assert other.encode(text, bos=True, eos=True) == ids
            assert other.decode(ids) == ours.decode(ids)
    assert other.special_tokens == ours.special_tokens
    assert other.stop_ids == ours.stop_ids


# Llama 3 by tiktoken

SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\x0b",
    "\x1c",
    "\x85",
    "\u00a0",
    "\u2028",
]
WORDS = [
    "a",
    "I'm",
    "word",
    "Wörter",
    "123",
    "1234567",
    "!",
    "...",
    "'s",
    "'LL",
    "日本",
    "😀",
    "_",
]
UNITS = [
    "a",
    " ",
    "\n",
    "\t",
    "😀",
    "中",
    "é",
    "0",
    "-",
    "=-",
    "the",
    "\x00",
    "  x",
    "ab\n",
]
ALPHABETS = [
    "ab",
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзиклмнопрст",
    "中文字日本語の",
    "😀😁🚀🇹🇷",
]


def test_every_two_spaces_between_every_two_words(meta):
    for left in WORDS:
        for right in WORDS:
            meta.check(["".join(f"{left}{a}{b}{right}" for a in SPACES for b in SPACES)])


@pytest.mark.slow
def test_every_code_point_alone_between_letters_and_after_a_space(meta):
    for start in range(0, sys.maxunicode + 1, 0x1000):
        codes = map(chr, range(start, start + 0x1000))
        meta.check(["".join(f"{c}x{c}\n {c}" for c in codes)])


@pytest.mark.slow
def test_every_token_that_is_text(meta):
    tokens = [meta.ours.token_bytes(token_id) for token_id in range(128000)]
    for start in range(0, 128000, 1000):
        meta.check(
            ["".join(t.decode(errors="ignore") for t in tokens[start : start + 1000])]
        )


@pytest.mark.parametrize("size", [127, 128, 129, 1000, 20_000])
@pytest.mark.parametrize("unit", UNITS)
def test_one_string_over_and_over(meta, unit, size):
    text = (unit * size)[:size]
    meta.check([text, f"x{text}y"])


@pytest.mark.parametrize("letters", ALPHABETS)
@pytest.mark.parametrize("size", [60, 81, 200, 1000, 20_000])
def test_long_pieces_of_random_letters(meta, letters, size):
    meta.check(["".join(random.Random(11).choices(letters, k=size))])


@given(text=st.text(st.characters(codec=None), max_size=80))
@settings(max_examples=300)
def test_any_string_even_with_surrogates(meta, text):
    meta.check([text])


@given(text=st.binary(max_size=200).map(lambda data: data.decode(errors="replace")))
@settings(max_examples=200)
def test_random_bytes_as_text(meta, text):
    meta.check([text])
