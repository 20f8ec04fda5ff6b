from collections.abc import Callable
from pathlib import Path

import pytest

from src import tokenizer as directory_module
from src.tokenizer import (
    TokenizerError,
    TokenizerMemoryError,
    TokenizerNotFoundError,
    load_tokenizer,
)
from tests.support.sentencepiece_writer import RESERVED, model_message, ranked
from tests.tokenizer.conftest import SINGLE_BYTES, tiktoken_lines
from tests.tokenizer.json_files import metaspace_file, write_json

VALID = b"".join(line + b"\n" for line in tiktoken_lines([*SINGLE_BYTES, b"ab"]))


def test_a_directory_with_base64_ranks_loads(write_model: Callable[[bytes], Path]) -> None:
    directory = write_model(VALID).parent
    for given in (directory, str(directory)):
        assert load_tokenizer(given).encode("ab", bos=False, eos=False) == [256]


def test_memory_that_python_does_not_get_is_an_error_of_the_package(
    write_model: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_model(VALID).parent

    def refuse(*_arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(directory_module, "read_tiktoken_file", refuse)
        with pytest.raises(TokenizerMemoryError, match=r"^\[load_tokenizer\] memory: the system"):
            load_tokenizer(directory)
    assert load_tokenizer(directory).encode("ab", bos=False, eos=False) == [256]


def test_a_download_that_keeps_the_file_in_original_loads(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "tokenizer.model").write_bytes(VALID)
    assert load_tokenizer(tmp_path).vocab_size == 257 + 256


def test_the_file_at_the_top_goes_before_the_one_in_original(
    write_model: Callable[[bytes], Path],
) -> None:
    directory = write_model(VALID).parent
    (directory / "original").mkdir()
    other = b"".join(line + b"\n" for line in tiktoken_lines([*SINGLE_BYTES, b"abc", b"ab"]))
    (directory / "original" / "tokenizer.model").write_bytes(other)
    assert load_tokenizer(directory).encode("ab", bos=False, eos=False) == [256]
    (directory / "tokenizer.model").unlink()
    assert load_tokenizer(directory).encode("ab", bos=False, eos=False) == [257]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_in_a_hugging_face_directory_tokenizer_json_wins(
    write_model: Callable[[bytes], Path], name: str
) -> None:
    directory = write_json(write_model(VALID).parent, metaspace_file())
    assert load_tokenizer(directory).encode("ab", bos=False, eos=False) == [256]
    (directory / name).write_text("{}")
    assert load_tokenizer(directory).special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}


def test_either_file_alone_serves_in_either_kind_of_directory(
    write_model: Callable[[bytes], Path],
) -> None:
    path = write_model(VALID)
    (path.parent / "config.json").write_text("{}")
    assert load_tokenizer(path.parent).vocab_size == 257 + 256
    path.unlink()
    (path.parent / "config.json").unlink()
    write_json(path.parent, metaspace_file())
    assert load_tokenizer(path.parent).vocab_size == 266


def test_the_kind_of_tokenizer_model_is_seen_in_its_bytes(
    write_model: Callable[[bytes], Path],
) -> None:
    model = model_message([*RESERVED, *ranked("\u2581", "a", "b")])
    assert load_tokenizer(write_model(VALID).parent).vocab_size == 257 + 256
    assert load_tokenizer(write_model(model).parent).vocab_size == 259 + 3


def test_a_directory_without_any_tokenizer_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFoundError, match=r"expected .*tokenizer\.model, got nothing"):
        load_tokenizer(tmp_path)
    (tmp_path / "params.json").touch()
    with pytest.raises(TokenizerNotFoundError, match=r"got 'params\.json'"):
        load_tokenizer(tmp_path)


def test_what_is_no_directory_is_refused(write_model: Callable[[bytes], Path]) -> None:
    path = write_model(VALID)
    with pytest.raises(TokenizerError, match="cannot be read: Not a directory"):
        load_tokenizer(path)
    with pytest.raises(TokenizerError, match="cannot be read: No such file"):
        load_tokenizer(path.parent / "missing")


def test_names_of_files_are_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2Jx").touch()
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(tmp_path)
    assert r"\x1b[2Jx" in str(caught.value)
    assert "\x1b" not in str(caught.value)
