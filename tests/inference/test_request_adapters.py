"""Requests with LoRA adapters: the bits of a request alone, and nothing that is shared
between different adapters.
"""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from src import ml
from src.inference import (
    BatchEngine,
    InferenceEngine,
    PromptCacheError,
    PromptError,
    Request,
    SamplingArgs,
    load_prompt_cache,
    save_prompt_cache,
)
from src.model import InferenceContext, LoadedAdapter, Model, load_adapter, load_model
from tests.inference.drafts import draft_always
from tests.inference.test_batch import (
    GREEDY,
    SYSTEM,
    Job,
    alone,
    batch,
    cached,
    ended,
    random_job,
)
from tests.support.adapters import random_pairs, write_peft
from tests.support.many import many
from tools.nano.facts_chat import STORIES

MODULES = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj embed_tokens lm_head"
# The rank, the matrices and the seed of each adapter.
ADAPTERS = [
    (16, MODULES), (4, "q_proj v_proj"), (1, "down_proj"), (33, "o_proj up_proj"),
    (8, "embed_tokens gate_proj"),
]  # fmt: skip


@pytest.fixture(scope="module")
def adapters(bundled: Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("adapters")
    loaded = []
    for seed, (rank, modules) in enumerate(ADAPTERS):
        pairs = random_pairs(bundled.args, rank, seed + 1, modules, size=0.3)
        path = write_peft(place / f"a{seed}", pairs, alpha=rank)
        loaded.append(load_adapter(bundled, path))
    return loaded


def greedy(engine: InferenceEngine, ids: list[int], *scaled: Any) -> list[int]:
    return [step.token_id for step in engine.generate(ids, 8, GREEDY, adapters=scaled)]


def test_an_answer_has_the_tokens_of_the_adapted_network(
    bundled: Model, adapters: list[LoadedAdapter]
) -> None:
    scaled = ((adapters[0], 1.0), (adapters[3], -0.5))
    context = InferenceContext(bundled.args, 40)
    ids = SYSTEM[:20]
    tokens = []
    new = ids
    for _ in range(8):
        with ml.adapted_rows([(len(new), 1, scaled)]):
            logits = bundled.transformer.forward(context, new, context.length)
        tokens.append(int(logits.numpy().argmax()))
        new = tokens[-1:]
    engine = InferenceEngine(bundled, 40)
    assert greedy(engine, ids, *scaled) == tokens != greedy(engine, ids)


def adapted_job(chance: random.Random, adapters: list[LoadedAdapter]) -> Job:
    """A random request with none, one or two adapters."""
    count = chance.choice([0, 1, 1, 1, 2])
    chosen = chance.sample(adapters, count)
    scales = chance.choices([1.0, 0.5, -1.0, 0.0], k=count)
    job = random_job(chance, longest=300)
    return job | {"adapters": tuple(zip(chosen, scales, strict=True))}


@pytest.mark.parametrize("count", [24, many], ids=str)
def test_mixed_requests_get_the_answers_that_they_get_alone(
    bundled: Model, adapters: list[LoadedAdapter], count: int
) -> None:
    chance = random.Random(count)
    jobs = [adapted_job(chance, adapters) for _ in range(count)]
    expected = alone(bundled, *jobs)
    few = [job for job in jobs if any(factor for _, factor in job["adapters"])][:12]
    plain = alone(bundled, *(job | {"adapters": ()} for job in few))
    changed = [expected[jobs.index(job)] for job in few]
    assert sum(a != b for a, b in zip(plain, changed, strict=True)) > 3
    with batch(bundled, max_requests=32, max_waiting=count) as engine:
        requests = [engine.submit(**job) for job in jobs]
        assert [ended(request) for request in requests] == expected


@pytest.mark.parametrize("quantize", ["nf4", "q8_0"])
def test_mixed_requests_of_a_quantized_model_too(tmp_path: Path, quantize: str) -> None:
    model = load_model(quantize=quantize)
    pairs = random_pairs(model.args, 7, modules=MODULES, size=0.3)
    adapter = load_adapter(model, write_peft(tmp_path / "a", pairs))
    chance = random.Random(quantize)
    jobs = [adapted_job(chance, [adapter, adapter]) for _ in range(12)]
    expected = alone(model, *jobs)
    with batch(model) as engine:
        requests = [engine.submit(**job) for job in jobs]
        assert [ended(request) for request in requests] == expected


def test_an_answer_with_a_factor_of_0_is_that_without_the_adapter(
    bundled: Model, adapters: list[LoadedAdapter]
) -> None:
    engine = InferenceEngine(bundled, 128)
    plain = greedy(engine, SYSTEM[:100])
    assert greedy(engine, SYSTEM[:100], (adapters[0], 0.0)) == plain
    assert engine.last_stats is not None
    assert engine.last_stats.cached_tokens == 99


def test_a_cached_prefix_belongs_to_its_adapters(
    bundled: Model, adapters: list[LoadedAdapter]
) -> None:
    first = ((adapters[0], 1.0),)
    half = ((adapters[0], 0.5),)
    both = ((adapters[0], 1.0), (adapters[1], 1.0))
    other_order = both[::-1]
    with batch(bundled, cache_tokens=16 * 1024) as engine:
        for scaled in ((), first, half, both, other_order):
            for expected in (0, len(SYSTEM)):
                request = engine.submit([*SYSTEM, 5], 3, GREEDY, adapters=scaled)
                list(request)
                assert request.stats.cached_tokens == expected
    engine_alone = InferenceEngine(bundled, 1024)
    for scaled, expected in (((), 0), (first, 0), (first, 700), (half, 0), ((), 0)):
        list(engine_alone.generate([*SYSTEM, 5], 1, GREEDY, adapters=scaled))
        assert engine_alone.last_stats is not None
        assert engine_alone.last_stats.cached_tokens == expected


def test_a_prompt_cache_of_one_chat_belongs_to_its_adapters(
    bundled: Model, adapters: list[LoadedAdapter], tmp_path: Path
) -> None:
    scaled = ((adapters[0], 1.0),)
    engine = InferenceEngine(bundled, 512)
    expected = greedy(engine, SYSTEM[:400], *scaled)
    path = tmp_path / "a"
    save_prompt_cache(engine, path)
    other = InferenceEngine(bundled, 512)
    again = load_adapter(bundled, adapters[0].path)
    count = load_prompt_cache(other, path, ((again, 1.0),))
    assert count == len(engine.cached_ids) > 400
    assert greedy(other, SYSTEM[:400], (again, 1.0)) == expected
    assert other.last_stats is not None
    assert other.last_stats.cached_tokens == 399
    for wrong in ((), ((again, 0.5),), ((adapters[1], 1.0),)):
        with pytest.raises(PromptCacheError, match="adapters: expected"):
            load_prompt_cache(other, path, wrong)
        assert other.cached_ids == ()
    save_prompt_cache(InferenceEngine(bundled, 512), tmp_path / "plain")
    with pytest.raises(PromptCacheError, match="got 'none'"):
        load_prompt_cache(other, tmp_path / "plain", scaled)


def test_a_prompt_cache_of_many_has_no_prefixes_with_adapters(
    bundled: Model, adapters: list[LoadedAdapter], tmp_path: Path
) -> None:
    with batch(bundled) as engine:
        list(engine.submit(SYSTEM[:300], 1, GREEDY, adapters=((adapters[0], 1.0),)))
        list(engine.submit(SYSTEM[300:500], 1, GREEDY))
        engine.save_prompt_cache(tmp_path / "a")
    with batch(bundled) as engine:
        assert engine.load_prompt_cache(tmp_path / "a") == 200
        assert cached(engine, SYSTEM[300:500]) == 199


@pytest.mark.parametrize("has_model", [False, True], ids=["text", "draft model"])
def test_drafts_change_nothing(
    bundled: Model,
    adapters: list[LoadedAdapter],
    monkeypatch: pytest.MonkeyPatch,
    has_model: bool,
) -> None:
    story = bundled.tokenizer.encode(STORIES[0], bos=True, eos=False)
    scaled = ((adapters[1], 0.2),)
    jobs: list[Job] = [
        {"prompt_ids": story + story[:9], "max_new_tokens": 30, "sampling": sampling,
         "adapters": scaled, "candidates": 2}
        for sampling in (GREEDY, SamplingArgs(0.3, seed=2))
    ]  # fmt: skip
    expected = alone(bundled, *jobs)
    draft_always(monkeypatch)
    draft_model = load_model(quantize="nf4") if has_model else None
    engine = InferenceEngine(bundled, 256, draft_model=draft_model)
    drafted = 0
    for job, whole in zip(jobs, expected, strict=True):
        assert ended(engine.generate(**job)) == whole
        assert engine.last_stats is not None
        drafted += engine.last_stats.drafted_tokens
    assert drafted > 0


@pytest.mark.parametrize(
    ("scaled", "words"),
    [
        (5, r"\[generate\] adapters must be a sequence: got int"),
        (("a",), "adapters must be pairs of an adapter for this model and a factor: got"),
        ([("a", 1.0)], "adapters must be pairs of an adapter for this model"),
        ([(None, 1.0)], "adapters must be pairs of an adapter for this model"),
        ([("adapter", math.nan)], "the factor of an adapter must be a finite number"),
        ([("adapter", "1")], "the factor of an adapter must be a finite number: got '1'"),
        ([("other", 1.0)], "adapters must be pairs of an adapter for this model"),
    ],
    ids=str,
)
def test_wrong_adapters_are_refused_before_anything_runs(
    bundled: Model, model: Model, adapters: list[LoadedAdapter], scaled: Any, words: str
) -> None:
    names = {
        "adapter": adapters[0],
        "other": replace(adapters[0], args=model.args),
    }
    if isinstance(scaled, list):
        scaled = [(names.get(name, name), factor) for name, factor in scaled]
    engine = InferenceEngine(bundled, 64)
    with pytest.raises(PromptError, match=words):
        list(engine.generate([1, 2], 1, adapters=scaled))
    with BatchEngine(bundled, sequence_length=64) as many:
        with pytest.raises(PromptError, match=words):
            many.answer(Request([1, 2], adapters=scaled))
        assert many.counters().passes == 0
