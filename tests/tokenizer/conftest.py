import base64
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, load_tokenizer
from tests.support.shared_data import shared_data
from tests.tokenizer.llama3_tiktoken import llama3_encoding

SINGLE_BYTES = tuple(bytes([byte]) for byte in range(256))


def ranks_of(*tokens: bytes) -> dict[bytes, int]:
    """All single bytes, then the tokens given."""
    return {token: rank for rank, token in enumerate((*SINGLE_BYTES, *tokens))}


def tiktoken_lines(tokens: Iterable[bytes]) -> list[bytes]:
    """The lines of a file of base64 ranks, without their newlines."""
    return [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write a `tokenizer.model` and give its path."""

    def write(data: bytes) -> Path:
        path = tmp_path / "tokenizer.model"
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="session")
def llama3() -> Tokenizer:
    """The tokenizer of Llama 3, from Meta's file."""
    return load_tokenizer(shared_data("llama3/tokenizer.model").parent)


@pytest.fixture(scope="session")
def llama3_tiktoken() -> Any:
    """The same file read and used by tiktoken."""
    pytest.importorskip("tiktoken", reason="needs the oracle extra")
    return llama3_encoding(shared_data("llama3/tokenizer.model"))
