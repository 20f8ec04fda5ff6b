"""The perplexity of SmolLM2 is that of llama.cpp."""

from pathlib import Path

import numpy as np
import pytest

from src.inference import perplexity_of, score_chunks, text_chunks
from src.model import Model
from tests.real.recorded import TEXT
from tests.support import llama_cpp
from tests.support.llama_perplexity import perplexity

pytestmark = pytest.mark.real

CHUNK = 512
MOST_DIFFERENCE = 0.005


def test_the_perplexity_is_that_of_llama_cpp(
    smollm2: Path, model: Model, figures: list[str]
) -> None:
    llama_cpp.needed()
    assert model.tokenizer is not None
    text = TEXT.read_text("utf-8")
    chunks = text_chunks(model.tokenizer, text.removesuffix("\n"), CHUNK)
    losses = [score.losses for score in score_chunks(model.transformer, chunks)]
    found = perplexity_of(np.concatenate(losses))
    with llama_cpp.LlamaCpp(smollm2, CHUNK, threads=2) as other:
        expected, error, count = perplexity(other, text, CHUNK)
    assert len(chunks) == count
    difference = abs(found.value / expected - 1)
    figures.append(
        f"--perplexity, {count} chunks of {CHUNK}: {found.value:.4f} ± "
        f"{found.error:.4f}, llama.cpp {expected:.4f} ± {error:.4f}; "
        f"{100 * difference:.2f} % apart, at most {100 * MOST_DIFFERENCE:.1f} %"
    )
    assert difference <= MOST_DIFFERENCE
    assert found.error == pytest.approx(error, rel=4 * MOST_DIFFERENCE)
