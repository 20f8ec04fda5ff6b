from collections.abc import Callable
from pathlib import Path

import pytest

from src.tokenizer import TokenizerError, TokenizerNotFoundError, load_tokenizer
from tests.tokenizer.conftest import SINGLE_BYTES, tiktoken_lines

VALID = b"".join(line + b"\n" for line in tiktoken_lines([*SINGLE_BYTES, b"ab"]))


def test_a_directory_with_base64_ranks_loads(write_model: Callable[[bytes], Path]) -> None:
    directory = write_model(VALID).parent
    for given in (directory, str(directory)):
        assert load_tokenizer(given).encode("ab", bos=False, eos=False) == [256]


def test_a_download_that_keeps_the_file_in_original_loads(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "tokenizer.model").write_bytes(VALID)
    assert load_tokenizer(tmp_path).vocab_size == 257 + 256


def test_a_directory_without_any_tokenizer_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFoundError, match=r"expected .*tokenizer\.model, got nothing"):
        load_tokenizer(tmp_path)
    (tmp_path / "params.json").touch()
    with pytest.raises(TokenizerNotFoundError, match=r"got params\.json"):
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
