"""Texts come back from their ids, whatever kind of file the tokenizer was read from."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer import Tokenizer, load_tokenizer
from tests.support.sentencepiece_writer import RESERVED, model_message, ranked
from tests.tokenizer.conftest import encode
from tests.tokenizer.json_files import byte_level_file, metaspace_file, write_json

# The mark of a space stands for one in these files, so no text with it comes back.
TEXTS = st.text(
    st.one_of(
        st.sampled_from("the <s>\n"), st.characters(codec="utf-8", exclude_characters="▁")
    )
)


def sentencepiece(directory: Path) -> Path:
    pieces = [*RESERVED, *ranked("th", "▁th", "▁the", "▁", "t", "h", "e")]
    (directory / "tokenizer.model").write_bytes(model_message(pieces))
    return directory


KINDS: dict[str, Callable[[Path], Path]] = {
    "byte level": lambda directory: write_json(directory, byte_level_file()),
    "marked": lambda directory: write_json(directory, metaspace_file()),
    "marked, whole": lambda directory: write_json(
        directory, metaspace_file(ignore_merges=True)
    ),
    "SentencePiece": sentencepiece,
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """A small tokenizer of each kind."""
    return load_tokenizer(KINDS[request.param](tmp_path_factory.mktemp("tokenizer")))


@given(text=TEXTS)
def test_a_text_comes_back_from_ids_that_are_not_special(tokenizer, text):
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert not any(map(tokenizer.is_special, ids))


@given(first=TEXTS, second=TEXTS)
def test_ids_joined_decode_to_texts_joined(tokenizer, first, second):
    ids = encode(tokenizer, first)
    more = encode(tokenizer, second)
    joined = tokenizer.decode(ids + more)
    # The space that goes before a text.
    assert joined in (
        first + second,
        f"{first} {second}",
    )
