from pathlib import Path
from unittest.mock import Mock

import pytest

from src import tokenizer as directory_module
from src.tokenizer import (
    TokenizerError,
    TokenizerMemoryError,
    TokenizerNotFoundError,
    load_tokenizer,
)
from tests.support.sentencepiece_writer import RESERVED, model_message, ranked
from tests.tokenizer.conftest import SINGLE_BYTES, encode, tiktoken_lines
from tests.tokenizer.json_files import metaspace_file, write_json


def ranks(*more: bytes) -> bytes:
    return b"".join(line + b"\n" for line in tiktoken_lines([*SINGLE_BYTES, *more]))


VALID = ranks(b"ab")


def ids_of_ab(directory: Path | str) -> list[int]:
    return encode(load_tokenizer(directory), "ab")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a file of base64 ranks."""
    (tmp_path / "tokenizer.model").write_bytes(VALID)
    return tmp_path


def test_a_directory_with_base64_ranks_loads(directory):
    assert ids_of_ab(directory) == ids_of_ab(str(directory)) == [256]


def test_a_lack_of_memory_is_an_error_of_the_package(directory, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            directory_module, "read_tiktoken_file", Mock(side_effect=MemoryError)
        )
        with pytest.raises(
            TokenizerMemoryError, match=r"^\[load_tokenizer\] memory: the system"
        ):
            load_tokenizer(directory)
    assert ids_of_ab(directory) == [256]


def test_the_file_at_the_top_goes_before_the_one_in_original(directory):
    (directory / "original").mkdir()
    (directory / "original" / "tokenizer.model").write_bytes(ranks(b"abc", b"ab"))
    assert ids_of_ab(directory) == [256]
    (directory / "tokenizer.model").unlink()
    assert ids_of_ab(directory) == [257]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_in_a_hugging_face_directory_tokenizer_json_wins(directory, name):
    write_json(directory, metaspace_file())
    assert ids_of_ab(directory) == [256]
    (directory / name).write_text("{}")
    assert load_tokenizer(directory).special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}


def test_either_file_alone_serves_in_either_kind_of_directory(directory):
    (directory / "config.json").write_text("{}")
    assert load_tokenizer(directory).vocab_size == 257 + 256
    (directory / "tokenizer.model").unlink()
    (directory / "config.json").unlink()
    assert load_tokenizer(write_json(directory, metaspace_file())).vocab_size == 266


def test_the_kind_of_tokenizer_model_is_seen_in_its_bytes(directory):
    assert load_tokenizer(directory).vocab_size == 257 + 256
    model = model_message([*RESERVED, *ranked("\u2581", "a", "b")])
    (directory / "tokenizer.model").write_bytes(model)
    assert load_tokenizer(directory).vocab_size == 259 + 3
    (directory / "tokenizer.model").write_bytes(b"\nAA== 0\n")
    with pytest.raises(TokenizerError, match="line 1: expected base64 of a new token"):
        load_tokenizer(directory)


def test_a_directory_without_any_tokenizer_has_an_error_of_its_own(tmp_path):
    with pytest.raises(
        TokenizerNotFoundError, match=r"expected tokenizer\.model .*, got nothing"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "params.json").touch()
    with pytest.raises(TokenizerNotFoundError, match=r"got 'params\.json'"):
        load_tokenizer(tmp_path)


def test_what_is_no_directory_is_refused(directory):
    with pytest.raises(
        TokenizerError, match="expected a readable directory, got Not a directory"
    ):
        load_tokenizer(directory / "tokenizer.model")
    with pytest.raises(
        TokenizerError, match="expected a readable directory, got No such file"
    ):
        load_tokenizer(directory / "missing")
