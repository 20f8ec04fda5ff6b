"""Ids and texts compared with those of `sentencepiece`: Llama 2's model, and variants of it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from src.tokenizer.sentencepiece_model import read_sentencepiece_model
from src.tokenizer.tokenizer_json import read_tokenizer_json
from tests.support.sentencepiece_writer import BYTE, NORMAL, USER_DEFINED, model_message
from tests.support.shared_data import shared_data
from tests.tokenizer.strings import KINDS, sample, strings, strings_without_surrogates

pytestmark = pytest.mark.oracle

sentencepiece = pytest.importorskip("sentencepiece", reason="needs the oracle extra")

Row = tuple[str, float, int]
Settings = dict[int, Any]

DEFINED = ("<think>", "▁▁foo", "class de", "▁deff", "😀😀", "▁▁▁x", "é1", "<|im_start|>")
LIVELY = [
    *("<think>", "  foo", "class de", " deff", "😀", "é1", " ", "  ", "x", "\n", "▁", "<s>"),
    *("</s>", "<unk>", "é", "<0x0A>", "\x00", "a", "ex", "ya", "   x", " y"),
]


def scored(rows: list[Row], score: Callable[[float], float]) -> list[Row]:
    return [(text, score(s) if kind == NORMAL else s, kind) for text, s, kind in rows]


def without_characters(rows: list[Row]) -> list[Row]:
    """Pieces of which some hold characters that are no piece themselves."""
    return [row for row in rows if row[2] != NORMAL or row[0] not in set("aexyéж")]


VARIANTS: dict[str, Callable[[list[Row]], tuple[list[Row], Settings, Settings]]] = {
    "equal scores": lambda rows: (scored(rows, lambda s: float(int(s) // 50)), {}, {}),
    "one score": lambda rows: (scored(rows, lambda s: 0.0), {}, {}),
    "other scores": lambda rows: (scored(rows, lambda s: (s * 7919) % 30011), {}, {}),
    "no bytes": lambda rows: ([row for row in rows if row[2] != BYTE], {35: 0}, {}),
    "no prefix": lambda rows: (rows, {}, {3: 0}),
    "extra spaces": lambda rows: (rows, {}, {4: 1}),
    "extra spaces, no prefix": lambda rows: (rows, {}, {3: 0, 4: 1}),
    "spaces as they are": lambda rows: (rows, {}, {5: 0}),
    "user defined": lambda rows: (rows + [(text, 0.0, USER_DEFINED) for text in DEFINED], {}, {}),
    "fewer characters": lambda rows: (without_characters(rows), {}, {}),
    "across words": lambda rows: (
        [*rows, ("e▁t", 5.0, NORMAL), ("x▁", -3.5, NORMAL), ("▁x▁y", -4.0, NORMAL)],
        {},
        {},
    ),
}


def assert_same(ours: Tokenizer, theirs: Any, text: str) -> None:
    """Compare ids, and text where no unknown piece, which is shown in another way, is in it."""
    ids = ours.encode(text, bos=False, eos=False)
    expected = theirs.encode(text)
    assert ids == expected, ascii(text[:200])
    if 0 not in ids:
        assert ours.decode(ids) == theirs.decode(expected), ascii(text[:200])


@pytest.fixture(scope="module")
def llama2() -> tuple[Tokenizer, Any]:
    path = shared_data("llama2/tokenizer.model")
    return load_tokenizer(path.parent), sentencepiece.SentencePieceProcessor(str(path))


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Tokenizer, Any]:
    model = read_sentencepiece_model(shared_data("llama2/tokenizer.model"))
    rows = [(piece.text, piece.score, piece.kind) for piece in model.pieces]
    path: Path = tmp_path_factory.mktemp("variant") / "tokenizer.model"
    path.write_bytes(model_message(*VARIANTS[request.param](rows)))
    return load_tokenizer(path.parent), sentencepiece.SentencePieceProcessor(str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_strings_of_each_kind(llama2: tuple[Any, Any], kind: str) -> None:
    for text in strings_without_surrogates(kind, seed=1, count=KINDS[kind] // 500):
        assert_same(*llama2, text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_strings(llama2: tuple[Any, Any], kind: str) -> None:
    for text in strings_without_surrogates(kind, seed=2, count=sample(kind)):
        assert_same(*llama2, text)


def test_variants_give_the_same_ids_and_texts(variant: tuple[Any, Any]) -> None:
    source = random.Random(7)
    for kind in KINDS:
        for text in strings_without_surrogates(kind, seed=3, count=40 if kind != "long" else 3):
            assert_same(*variant, text)
    for _ in range(400):
        assert_same(*variant, "".join(source.choices(LIVELY, k=source.randint(0, 9))))


def test_any_ids_decode_alike(variant: tuple[Any, Any]) -> None:
    """Bytes that are no character too; ids of control and unknown pieces are shown by name here."""
    ours, theirs = variant
    source = random.Random(8)
    for _ in range(500):
        high = source.choice((259, ours.vocab_size))
        ids = source.choices(range(3, high), k=source.randint(0, 8))
        text = theirs.decode(ids)
        assert ours.decode(ids) == text
        decoder = StreamDecoder(ours)
        assert "".join([*map(decoder.push, ids), decoder.finish()]) == text


@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_both_files_of_a_vocabulary_give_the_same_ids_and_texts(name: str) -> None:
    ours = load_tokenizer(shared_data(f"{name}/tokenizer.model").parent)
    other = read_tokenizer_json(shared_data(f"{name}/tokenizer.json"))
    for kind in KINDS:
        for text in strings(kind, seed=4, count=KINDS[kind] // 1000):
            ids = ours.encode(text, bos=True, eos=True)
            assert other.encode(text, bos=True, eos=True) == ids
            assert other.decode(ids) == ours.decode(ids)
    assert other.special_tokens == ours.special_tokens
    assert other.stop_ids == ours.stop_ids
