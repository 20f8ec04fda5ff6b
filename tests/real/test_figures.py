"""The recorded figures that do not depend on a machine are those of this program."""

import json
from typing import Any

import pytest

from src.inference import (
    InferenceEngine,
    Message,
    SamplingArgs,
    score_chunks,
    text_chunks,
)
from src.model import Model
from tests.bench.bench_real import (
    CHUNK,
    FIGURES,
    FORMATS,
    OURS,
    THEIRS,
    logged_choice,
    text,
)

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(FIGURES.read_text("utf-8"))


def test_the_answer_on_the_page_is_the_answer(model: Model, recorded: Any) -> None:
    engine = InferenceEngine(model, 512)
    question = [Message("user", recorded["answer"]["question"])]
    steps = engine.chat(question, 200, SamplingArgs(temperature=0.0))
    assert "".join(step.text for step in steps) == recorded["answer"]["answer"]


def test_the_log_on_the_page_is_that_of_a_run(smollm2: Any, recorded: Any) -> None:
    assert logged_choice() == recorded["answer"]["log"]


def test_the_perplexity_on_the_page_is_within_half_a_percent_of_llama_cpp(
    recorded: Any,
) -> None:
    figures = recorded["perplexity"]
    assert figures["tokens"] >= 20_000
    assert figures[OURS] == pytest.approx(figures[THEIRS], rel=0.005)


def test_the_text_is_long_enough_for_the_figures(model: Model, recorded: Any) -> None:
    assert model.tokenizer is not None
    chunks = text_chunks(model.tokenizer, text(), CHUNK)
    assert len(chunks) * CHUNK >= recorded["perplexity"]["tokens"]
    [score] = score_chunks(model.transformer, chunks[:1])
    assert score.losses.size == CHUNK // 2 - 1


def test_formats_of_more_bits_are_nearer(recorded: Any) -> None:
    figures = recorded["formats"]
    assert figures["bfloat16"]["int16"]["divergence"] == 0.0
    assert {"in the file", *FORMATS} <= figures.keys()
    eight = max(figures[name]["int16"]["divergence"] for name in ("q8_0", "int8"))
    four = min(figures[name]["int16"]["divergence"] for name in ("nf4", "q4_0"))
    assert eight < four / 10


@pytest.mark.parametrize("name", ["in the file", "q8_0", "int8"])
def test_activations_of_8_bits_cost_less_than_a_hundredth(
    recorded: Any, name: str
) -> None:
    figures = recorded["formats"][name]
    more = figures["int8"]["divergence"] - figures["int16"]["divergence"]
    assert 0 < more < 0.01
    # A factor of 1.01 of the perplexity is 0.01 nats per token.
    assert figures["int8"]["perplexity"] < 1.01 * figures["int16"]["perplexity"]
