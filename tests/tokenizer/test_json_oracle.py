"""Ids and texts compared with those of `tokenizers`, on real files and on trained ones."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from src.tokenizer.tokenizer_json import read_tokenizer_json
from tests.support.shared_data import shared_data
from tests.tokenizer.json_files import PREPEND, Json, added, byte_level_file, metaspace, write_json
from tests.tokenizer.strings import KINDS, sample, strings_without_surrogates
from tests.tokenizer.trained_files import (
    ADDED,
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

tokenizers = pytest.importorskip("tokenizers", reason="needs the oracle extra")

TRAINED: dict[str, Callable[[], Json]] = {
    "Qwen": lambda: split_by(QWEN, composes=True),
    "Qwen, added tokens": lambda: split_by(QWEN, composes=True, tokens=ADDED),
    "SmolLM3, OLMo 2": lambda: split_by(SMOLLM3, tokens=ADDED),
    "Mistral NeMo": lambda: split_by(TEKKEN, whole=True),
    "SmolLM2": smollm2,
    "SmolLM2, added tokens": lambda: smollm2(tokens=ADDED),
    "TinyLlama": lambda: mistral(PREPEND, None),
    "TinyLlama, added tokens": lambda: mistral(PREPEND, None, tokens=ADDED),
    "TinyLlama, no bytes": lambda: mistral(PREPEND, None, byte_fallback=False, tokens=ADDED),
    "not fused": lambda: mistral(PREPEND, None, byte_fallback=False, fuse_unk=False),
    "Mistral v0.3": lambda: mistral(None, metaspace("first", split=False)),
    "Mistral v0.3, added tokens": lambda: mistral(
        None, metaspace("first", split=False), tokens=ADDED
    ),
    "always": lambda: mistral(None, metaspace("always", split=True), tokens=ADDED),
    "never": lambda: mistral(None, metaspace("never", split=True)),
}

LIVELY = [
    *("<think>", "</think>", "two words", "klass", " deff", "<tool>", "tool", "  ", " ", "x"),
    *("\n", "▁", "<s>", "</s>", "<unk>", "<0x0A>", "é", "😀", "\x00", "12", "don't", "klass"),
]


def assert_same(ours: Tokenizer, theirs: Any, text: str) -> None:
    """Compare ids and decoded text."""
    ids = ours.encode(text, bos=False, eos=False)
    expected = theirs.encode(text, add_special_tokens=False).ids
    assert ids == expected, ascii(text[:200])
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False), ascii(text[:200])


@pytest.fixture(scope="module", params=TRAINED)
def trained(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Tokenizer, Any]:
    directory: Path = tmp_path_factory.mktemp("trained")
    theirs = write_both(directory, TRAINED[request.param]())
    return load_tokenizer(directory), theirs


@pytest.fixture(scope="module", params=["llama2", "llama3"])
def real(request: pytest.FixtureRequest) -> tuple[Tokenizer, Any]:
    path = shared_data(f"{request.param}/tokenizer.json")
    return read_tokenizer_json(path), oracle(path, tokenizers.Tokenizer)


@pytest.mark.parametrize("kind", KINDS)
def test_trained_files_give_the_same_ids_and_texts(trained: tuple[Any, Any], kind: str) -> None:
    for text in strings_without_surrogates(kind, seed=3, count=50 if kind != "long" else 3):
        assert_same(*trained, text)


def test_trained_files_do_so_around_added_and_special_tokens(trained: tuple[Any, Any]) -> None:
    source = random.Random(5)
    for _ in range(400):
        assert_same(*trained, "".join(source.choices(LIVELY, k=source.randint(0, 9))))


@pytest.mark.parametrize("seed", range(20))
def test_added_tokens_that_overlap_are_found_alike(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    file = byte_level_file()
    first = len(file["model"]["vocab"]) + len(file["added_tokens"])
    names = {"".join(source.choices("ab<", k=source.randint(2, 6))) for _ in range(12)}
    file["added_tokens"] += [
        added(first + n, name, lstrip=source.random() < 0.2, rstrip=source.random() < 0.2)
        for n, name in enumerate(sorted(names))
    ]
    path = write_json(tmp_path, file) / "tokenizer.json"
    ours, theirs = load_tokenizer(tmp_path), oracle(path, tokenizers.Tokenizer)
    for _ in range(100):
        text = "".join(source.choices("aaabb< \n", k=source.randint(0, 60)))
        ids = ours.encode(text, bos=False, eos=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, ascii(text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_strings_on_trained_files(trained: tuple[Any, Any], kind: str) -> None:
    for text in strings_without_surrogates(kind, seed=4, count=sample(kind, 10)):
        assert_same(*trained, text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_strings_of_each_kind_on_real_files(real: tuple[Any, Any], kind: str) -> None:
    for text in strings_without_surrogates(kind, seed=1, count=KINDS[kind] // 1000):
        assert_same(*real, text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_strings_on_real_files(real: tuple[Any, Any], kind: str) -> None:
    for text in strings_without_surrogates(kind, seed=2, count=sample(kind)):
        assert_same(*real, text)


def test_every_token_decodes_alike(trained: tuple[Any, Any]) -> None:
    """After a word, so that no space of a token is the first of a text."""
    ours, theirs = trained
    word = ours.encode("word", bos=False, eos=False)
    for token_id in range(ours.vocab_size):
        ids = [*word, token_id]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


def test_streaming_gives_the_whole_text(trained: tuple[Any, Any]) -> None:
    ours, _ = trained
    for text in strings_without_surrogates("words and spaces", seed=6, count=200):
        ids = ours.encode(text, bos=False, eos=False)
        decoder = StreamDecoder(ours)
        assert "".join([*map(decoder.push, ids), decoder.finish()]) == ours.decode(ids)


def test_begin_and_end_are_where_tokenizers_puts_them(real: tuple[Any, Any]) -> None:
    """Of the two files, that of Llama 2 has a template."""
    ours, theirs = real
    if ours.special_tokens.get("<s>") == 1:
        expected = theirs.encode("Hello", add_special_tokens=True).ids
        assert ours.encode("Hello", bos=ours.adds_bos, eos=False) == expected
    assert ours.encode("Hello", bos=True, eos=False).count(ours.bos_id) == 1
