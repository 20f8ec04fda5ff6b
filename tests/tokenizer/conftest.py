import base64
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from src.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from src.tokenizer.tokenizer_json import read_tokenizer_json
from tests.support.bounds import check_bounds
from tests.support.shared_data import shared_data

# Source: meta-llama/llama-models models/llama3/tokenizer.py, commit
# a946b747aa1504b9cb07cfe95ee50180fa2e8b88. Written out again, so that the oracle shares
# nothing.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SINGLE_BYTES = tuple(bytes([byte]) for byte in range(256))
# Tokens over three letters, ranked in any order: also such as no training would give.
TOKENS = st.lists(
    st.lists(st.sampled_from(b"abc"), min_size=2, max_size=7).map(bytes),
    unique=True,
    max_size=25,
)


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


def encode(tokenizer: Tokenizer, text: str, *, first: bool = True) -> list[int]:
    """Encode a text alone."""
    return tokenizer.encode(text, bos=False, eos=False, first=first)


def check_refused(read: Callable[[Path], object], path: Path) -> None:
    """Check that a hostile file is refused in a short line, in little time and space."""

    def refuse() -> None:
        with pytest.raises(TokenizerError) as caught:
            read(path)
        assert len(str(caught.value)) < 500 + len(str(path))

    check_bounds(refuse)


@cache
def _read(path: Path) -> Tokenizer:
    return (
        read_tokenizer_json(path)
        if path.suffix == ".json"
        else load_tokenizer(path.parent)
    )


def real_tokenizer(name: str) -> Tokenizer:
    """Read a real file such as `llama3/tokenizer.json`, once for all tests."""
    return _read(shared_data(name))


@pytest.fixture(scope="session")
def llama3() -> Tokenizer:
    """The tokenizer of Llama 3, from Meta's file."""
    return real_tokenizer("llama3/tokenizer.model")


@pytest.fixture(scope="session")
def llama3_tiktoken() -> Any:
    """tiktoken as Meta sets it up for Llama 3, with its own reader of the file."""
    tiktoken = pytest.importorskip("tiktoken", reason="needs the oracle extra")
    load = pytest.importorskip("tiktoken.load").load_tiktoken_bpe
    ranks = load(str(shared_data("llama3/tokenizer.model")))
    return tiktoken.Encoding(
        "llama3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
