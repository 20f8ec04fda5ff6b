"""The ids of a megabyte of text are those of llama.cpp."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from src.model import Model
from tests.real.texts import SCRIPTS, all_texts
from tests.support import llama_cpp

pytestmark = pytest.mark.real
NAMES = ("prose", "code", *(name for name, _, _ in SCRIPTS))


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return all_texts()


@pytest.fixture(scope="module")
def equal(figures: list[str]) -> Iterator[list[tuple[int, int]]]:
    """The tokens and bytes of the texts whose ids are equal; the sums are a figure."""
    counts: list[tuple[int, int]] = []
    yield counts
    tokens, nbytes = (
        (sum(each) for each in zip(*counts, strict=True)) if counts else (0, 0)
    )
    figures.append(
        f"ids of {len(counts)} of {len(NAMES)} texts equal llama.cpp's: {tokens} tokens "
        f"of {nbytes} bytes of prose, code and {len(SCRIPTS)} scripts"
    )


@pytest.fixture(scope="module")
def other(smollm2: Path) -> Iterator[llama_cpp.LlamaCpp]:
    llama_cpp.needed()
    with llama_cpp.LlamaCpp(smollm2, 16) as opened:
        yield opened


def test_the_texts_are_a_megabyte_in_20_scripts(texts: dict[str, str]) -> None:
    assert len(SCRIPTS) == 20
    assert tuple(texts) == NAMES
    assert sum(len(text.encode()) for text in texts.values()) > 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_llama_cpp(
    name: str,
    texts: dict[str, str],
    model: Model,
    other: llama_cpp.LlamaCpp,
    equal: list[tuple[int, int]],
) -> None:
    assert model.tokenizer is not None
    text = texts[name]
    found = model.tokenizer.encode(text, bos=False, eos=False)
    expected = other.tokenize(text)
    assert found == expected
    assert model.tokenizer.decode(found) == text
    equal.append((len(found), len(text.encode())))
