"""A recorded answer of a trained model, again whatever runs it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from src.inference import BatchEngine, InferenceEngine, SamplingArgs
from src.model import InferenceContext, Model
from tests.real.recorded import GREEDY_TOKENS, PROMPT, prompt_ids, recorded
from tests.support.mpi import mpirun, needs_mpi

pytestmark = pytest.mark.real

GREEDY = SamplingArgs(temperature=0.0)
CONTEXT = 256


@pytest.fixture(scope="module")
def expected() -> list[int]:
    ids: list[int] = recorded()["greedy_ids"]
    assert len(ids) == GREEDY_TOKENS
    assert len(set(ids)) > 50
    return ids


def token_ids(steps: Any) -> list[int]:
    return [step.token_id for step in steps]


@pytest.mark.parametrize("speculation", [False, True], ids=["one by one", "with drafts"])
def test_an_engine_gives_the_recorded_answer(
    model: Model, expected: list[int], speculation: bool
) -> None:
    engine = InferenceEngine(model, CONTEXT, speculation=speculation)
    assert (
        token_ids(engine.generate(prompt_ids(model), GREEDY_TOKENS, GREEDY)) == expected
    )


def test_a_batch_gives_the_recorded_answer_to_each_of_its_requests(
    model: Model, expected: list[int], figures: list[str]
) -> None:
    prompt = prompt_ids(model)
    with BatchEngine(model, sequence_length=CONTEXT, cache_tokens=4 * CONTEXT) as engine:
        requests = [  # each goes on from another token of the answer
            engine.submit(prompt + expected[:n], GREEDY_TOKENS - n, GREEDY)
            for n in (0, 3, 120)
        ]
        found = [token_ids(request) for request in requests]
    assert found == [expected[n:] for n in (0, 3, 120)]
    figures.append(
        f"{GREEDY_TOKENS} greedy tokens: equal alone, with drafts, and in a batch"
    )


def test_chunks_of_the_prompt_give_the_recorded_answer(
    model: Model, expected: list[int]
) -> None:
    prompt = prompt_ids(model) + expected[:100]
    for size in (1, 16, 50, len(prompt)):
        context = InferenceContext(model.args, len(prompt))
        for start in range(0, len(prompt), size):
            chunk = prompt[start : start + size]
            row = model.transformer.forward(context, chunk, start).numpy()[-1]
        assert row.argmax() == expected[100]


@needs_mpi
def test_two_ranks_give_the_recorded_answer(
    smollm2: Path, expected: list[int], figures: list[str]
) -> None:
    done = mpirun(
        2,
        *(sys.executable, "-m", "src.main", "-m", str(smollm2), "-c", str(CONTEXT)),
        *(
            "--completion",
            "-p",
            PROMPT,
            "--temperature",
            "0",
            "-n",
            str(GREEDY_TOKENS),
            "--json",
        ),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == expected
    figures.append(f"{GREEDY_TOKENS} greedy tokens: equal on two ranks")
