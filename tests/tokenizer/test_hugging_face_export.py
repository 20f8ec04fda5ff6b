"""Tokenizer files made of the keys of GGUF files give the ids of the keys."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, load_tokenizer
from src.tokenizer.gguf_export import gguf_tokenizer_keys
from src.tokenizer.gguf_keys import gguf_tokenizer
from src.tokenizer.hugging_face_export import hugging_face_files
from tests.support.sentencepiece_writer import NORMAL, USER_DEFINED, model_message
from tests.support.shared_data import shared_data
from tests.tokenizer.json_files import added, byte_level_file, changed, write_json
from tests.tokenizer.strings import KINDS, strings
from tests.tokenizer.test_gguf_export import TRAINED
from tests.tokenizer.test_gguf_keys import ROWS, TEXTS, assert_same, assert_same_roles


def written(
    source: Path, target: Path, rows: int | None = None
) -> tuple[Tokenizer, Tokenizer]:
    """Write the files of the keys of a directory; give their tokenizer, and that of the
    keys.
    """
    keys: dict[str, Any] = gguf_tokenizer_keys(
        source, rows or load_tokenizer(source).vocab_size
    )
    theirs = gguf_tokenizer(Path("a.gguf"), keys)
    assert theirs is not None
    target.mkdir()
    for name, content in hugging_face_files(Path("a.gguf"), keys, theirs).items():
        (target / name).write_bytes(content)
    return load_tokenizer(target), theirs


LLAMA_3 = pytest.param("llama3", marks=pytest.mark.slow)  # whose merges take seconds


def source_of(name: str, directory: Path) -> Path:
    """Returns a directory with the tokenizer of a kind."""
    source = directory / "source"
    source.mkdir()
    if name in TRAINED:
        pytest.importorskip("tokenizers", reason="needs the oracle extra")
        write_json(source, TRAINED[name]())
    else:
        shutil.copy(shared_data(f"{name}/tokenizer.model"), source)
    return source


@pytest.mark.parametrize("name", [*TRAINED, "llama2", LLAMA_3])
def test_the_files_of_a_kind_give_its_ids_and_roles(name: str, tmp_path: Path) -> None:
    source = source_of(name, tmp_path)
    target = tmp_path / "target"
    ours, theirs = written(source, target)
    if name not in TRAINED:  # which have no token that begins a text
        assert_same_roles(ours, theirs)
    assert (ours.special_tokens, ours.stop_ids) == (
        theirs.special_tokens,
        theirs.stop_ids,
    )
    assert_same(ours, theirs, TEXTS)
    for kind in KINDS:
        assert_same(ours, theirs, strings(kind, 5, 20))


@pytest.mark.oracle
@pytest.mark.parametrize("name", [*TRAINED, "llama2", "llama3"])
def test_the_libraries_read_the_files_and_give_the_same_ids(
    name: str, tmp_path: Path
) -> None:
    source = source_of(name, tmp_path)
    target = tmp_path / "target"
    ours, _ = written(source, target)
    texts = [
        "Hello  world 123456",
        "a\n\n b\t",
        "日本語 🦙",
        " x",
        "don't I'LL",
        "  two\r\n",
    ]
    expected = [ours.encode(text, bos=False, eos=False) for text in texts]
    if name == "llama2":
        library: Any = pytest.importorskip(
            "sentencepiece", reason="needs the oracle extra"
        )
        model = library.SentencePieceProcessor(model_file=str(target / "tokenizer.model"))
        assert [model.encode(text) for text in texts] == expected
        assert (model.bos_id(), model.eos_id()) == (ours.bos_id, ours.eos_id)
        return
    library = pytest.importorskip("tokenizers", reason="needs the oracle extra")
    made = library.Tokenizer.from_file(str(target / "tokenizer.json"))
    assert [made.encode(text, add_special_tokens=False).ids for text in texts] == expected
    begin = [ours.bos_id] if ours.adds_bos else []
    assert made.encode("a").ids == begin + made.encode("a", add_special_tokens=False).ids


def test_user_defined_pieces_are_kept_and_unused_rows_left_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    rows = [*ROWS, ("<tool>", 0.0, USER_DEFINED), ("aab", -9.0, NORMAL)]
    (tmp_path / "source" / "tokenizer.model").write_bytes(model_message(rows))
    ours, theirs = written(tmp_path / "source", tmp_path / "target", len(rows) + 3)
    assert (ours.vocab_size, theirs.vocab_size) == (len(rows), len(rows) + 3)
    assert_same(ours, theirs, ["a<tool>b ab", "<s> a"])


def test_a_vocabulary_like_gemma_s_is_written(tmp_path: Path) -> None:
    """Its unknown token is marked as a control token, and runs of spaces are pieces."""
    (tmp_path / "source").mkdir()
    rows = [*ROWS, ("▁▁", 0.0, USER_DEFINED), ("▁▁▁", 0.0, USER_DEFINED)]
    (tmp_path / "source" / "tokenizer.model").write_bytes(model_message(rows))
    keys: dict[str, Any] = gguf_tokenizer_keys(tmp_path / "source", len(rows))
    names = keys["tokenizer.ggml.tokens"]
    names[-2:] = ["  ", "   "]
    unknown = keys["tokenizer.ggml.unknown_token_id"]
    keys["tokenizer.ggml.token_type"][unknown] = 3  # a control token
    theirs = gguf_tokenizer(Path("a.gguf"), keys)
    assert theirs is not None
    for name, content in hugging_face_files(Path("a.gguf"), keys, theirs).items():
        (tmp_path / name).write_bytes(content)
    ours = load_tokenizer(tmp_path)
    assert ours.special_tokens == theirs.special_tokens
    assert_same(ours, theirs, ["a  b", "a   b a", "  a", " a     b", *TEXTS])


def test_added_tokens_are_kept_and_unused_rows_left_out(tmp_path: Path) -> None:
    file = byte_level_file((("t", "h"), ("th", "e")), names=("<|im_end|>",))
    file = changed(file, added_tokens=[*file["added_tokens"], added(259, "<think>")])
    ours, theirs = written(
        write_json(tmp_path / "source", file), tmp_path / "target", 300
    )
    assert (ours.vocab_size, theirs.vocab_size) == (260, 300)
    assert ours.special_tokens == theirs.special_tokens
    assert ours.stop_ids == theirs.stop_ids
    assert_same(ours, theirs, ["the<think> the<|im_end|>", *TEXTS])
