"""Requests in one batch to models with experts: each answer is the one alone.

The tokens of a pass are sorted by expert, so the rows of one expert belong to several
requests. Which requests these are must not change a bit.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from src.model import Model, load_model
from tests.inference.test_batch import alone, batch, ended, random_job
from tests.model.families import write_family
from tests.support.many import many

FAMILIES = ["qwen3_moe", "gpt_oss"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [24, many], ids=str)
def test_mixed_requests_get_the_answers_that_they_get_alone(
    bundled: Model, tmp_path: Path, family: str, count: int
) -> None:
    directory = write_family(tmp_path, family, vocab_size=bundled.args.vocab_size)
    model = replace(load_model(directory), tokenizer=bundled.tokenizer)
    chance = random.Random(count)
    jobs = [random_job(chance, longest=300) for _ in range(count)]
    expected = alone(model, *jobs)
    assert len({tuple(step[0] for step in answer) for answer in expected}) > count // 2
    with batch(model, max_requests=32, max_waiting=count) as engine:
        requests = [engine.submit(**job) for job in jobs]
        assert [ended(request) for request in requests] == expected
