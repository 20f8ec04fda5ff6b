"""Many requests at once: each answer is that of an `InferenceEngine`, and nothing stays
behind.
"""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from src.checkpoint import CheckpointError
from src.inference import (
    BatchEngine,
    ClosedError,
    ContextFullError,
    GrammarError,
    InferenceEngine,
    InferenceError,
    PromptError,
    QueueFullError,
    SamplingArgs,
    Step,
    ThreadRefusedError,
    TimeLimitError,
)
from src.inference import batch as batch_module
from src.inference.blocks import BlockPool
from src.inference.speculation import Drafter
from src.model import Model, NotEnoughMemoryError, TokenIdError, load_model
from src.model.saving_gguf import save_gguf
from tests.inference.drafts import draft_always
from tests.inference.endless import Endless
from tests.server.running import wait_until
from tools.nano.facts_chat import STORIES
from tools.runs import recorded

CONTEXT = 1024
GREEDY = SamplingArgs(temperature=0.0)
SYSTEM = random.Random(7).choices(range(3000), k=700)
Ended = list[tuple[int, str, str | None, Any]]
Job = dict[str, Any]  # a request, whichever engine it goes to


def job_of(
    ids: list[int], limit: int, sampling: SamplingArgs = GREEDY, **more: Any
) -> Job:
    return {"prompt_ids": ids, "max_new_tokens": limit, "sampling": sampling, **more}


def random_bias(chance: random.Random) -> dict[int, float]:
    """Nothing, or numbers for a third of the vocabulary."""
    if chance.random() < 0.6:
        return {}
    return {
        token: chance.uniform(-8.0, 8.0) for token in chance.sample(range(3000), 1000)
    }


def random_job(chance: random.Random, longest: int = 900) -> Job:
    """Prompts share beginnings of all lengths; settings are of all kinds."""
    shared = SYSTEM[: chance.randrange(len(SYSTEM))] if chance.random() < 0.6 else []
    own = chance.choices(range(3000), k=chance.choice([1, 2, 15, 16, 17, 255, 256, 257]))
    sampling = SamplingArgs(
        temperature=chance.choice([0.0, 0.7, 1.3]), top_k=chance.choice([0, 5, 50]),
        top_p=chance.choice([0.8, 1.0]), repeat_penalty=chance.choice([1.0, 1.2]),
        seed=chance.randrange(1000), logit_bias=random_bias(chance),
    )  # fmt: skip
    limit = chance.choice([1, 2, 7, 20, 40])
    stop = chance.choice([(), (), ("e", "the "), ("zzz",)])
    candidates = chance.choice([0, 0, 0, 3])
    ends = chance.choice([(), (), range(20, 60)])
    more = {"stop": stop, "candidates": candidates, "end_ids": ends}
    return job_of((shared + own)[-longest:], limit, sampling, **more)


def ended(steps: Iterable[Step]) -> Ended:
    return [(step.token_id, step.text, step.stop_reason, step.choice) for step in steps]


def alone(model: Model, *jobs: Job) -> list[Ended]:
    engine = InferenceEngine(model, CONTEXT, speculation=False)
    return [ended(engine.generate(**job)) for job in jobs]


@contextmanager
def batch(
    model: Model, sequence_length: int = CONTEXT, **more: Any
) -> Iterator[BatchEngine]:
    """An engine of which, after its end, no block is lost or in use, and whose counts are
    right.
    """
    with BatchEngine(model, sequence_length=sequence_length, **more) as engine:
        yield engine
    pool = engine._pool
    assert set(pool.held) == set(pool.unused)
    assert engine.counters().blocks_used == len(pool.sequences) == 0
    assert sorted([b.place for b in pool.held] + pool._free) == list(range(pool.blocks))
    assert all(block.references == 0 for block in pool.held)


class Slow(Endless):
    """Goes on as long as it may, and takes its time."""

    def allowed(self) -> np.ndarray:
        time.sleep(0.01)
        return super().allowed()


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("bfloat16", 1024),
        ("bfloat16", 6000),
        ("nf4", 1024),
        ("int8", 6000),
        ("gguf", 1024),
    ],
)
def test_random_requests_get_the_answers_that_they_get_alone(kind, tokens, tmp_path):
    if kind == "gguf":
        save_gguf(None, tmp_path / "a.gguf", "q8_0")
        model = load_model(tmp_path / "a.gguf")
    else:
        model = load_model(quantize=None if kind == "bfloat16" else kind)
    chance = random.Random(f"{kind} {tokens}")
    jobs = [random_job(chance) for _ in range(16)]
    expected = alone(model, *jobs)
    for most in (1, 3, 16):
        with batch(model, cache_tokens=tokens, max_requests=most) as engine:
            requests = [engine.submit(**job) for job in jobs]
            assert [ended(request) for request in requests] == expected
            assert all(request.is_over for request in requests)
        counts = engine.counters()
        assert (counts.finished, counts.running, counts.waiting) == (len(jobs), 0, 0)
        assert counts.new_tokens == sum(map(len, expected))
        assert counts.prompt_tokens == sum(len(job["prompt_ids"]) for job in jobs)


def test_drafts_of_several_requests_change_nothing(bundled, monkeypatch):
    # A story that the bundled model knows, and its first tokens once more.
    story = bundled.tokenizer.encode(STORIES[0], bos=True, eos=False)
    jobs = [
        job_of(story + story[:start], 40, sampling, candidates=2)
        for start in (9, 14, 20)
        for sampling in (GREEDY, SamplingArgs(0.3, seed=2))
    ]
    expected = alone(bundled, *jobs)
    draft_always(monkeypatch)
    with batch(bundled, 256) as engine:  # each of them alone
        drafted = 0
        for job, whole in zip(jobs, expected, strict=True):
            request = engine.submit(**job)
            assert ended(request) == whole
            drafted += request.stats.drafted_tokens
        assert drafted > 0
    sizes = list[int]()
    run = BlockPool.run

    def noted(self: BlockPool, parts: Any) -> Any:
        sizes.append(sum(len(ids) > certain for _, ids, certain, _ in parts))
        return run(self, parts)

    monkeypatch.setattr(Drafter, "best_count", lambda self, most, _others: min(most, 2))
    monkeypatch.setattr(BlockPool, "run", noted)
    with batch(bundled, 256) as engine:
        with engine._passing:
            requests = [engine.submit(**job) for job in jobs]
        assert [ended(request) for request in requests] == expected
        assert sum(request.stats.accepted_tokens for request in requests) > 0
    assert max(sizes) > 1  # a pass checked drafts of several requests


def cached(engine: BatchEngine, ids: list[int]) -> int:
    """Returns how many tokens of a prompt are cached; the last one always runs."""
    request = engine.submit(ids, 3, GREEDY)
    assert len(list(request)) == request.stats.new_tokens
    return request.stats.cached_tokens


def test_a_prefix_is_kept_once_and_found_again(bundled):
    with batch(bundled, cache_tokens=4096) as engine:
        assert [cached(engine, [*SYSTEM, 5]) for _ in range(2)] == [0, len(SYSTEM)]
        # 2 blocks as they are, 88 positions copied
        assert cached(engine, [*SYSTEM[:600], 9, 9, 9]) == 600
        held = engine.counters().blocks_cached
        assert held == 3 + 1 + 1
        together = [engine.submit([*SYSTEM, number], 40, GREEDY) for number in range(4)]
        for request in together:
            list(request)
            assert request.stats.cached_tokens == len(SYSTEM)
        # The 2 blocks before are shared.
        assert engine.counters().blocks_cached == held + 4


def test_prefixes_are_shared_within_a_group_alone(bundled, tmp_path):
    ids = SYSTEM[:600]
    with BatchEngine(
        bundled, sequence_length=CONTEXT, cache_tokens=8 * CONTEXT
    ) as engine:

        def cached(group: Any, ids: list[int]) -> int:
            request = engine.submit(ids, 2, GREEDY, prefix_group=group)
            answer = [step.token_id for step in request]
            assert answer == expected or ids is not SYSTEM
            return request.stats.cached_tokens

        expected = [
            step.token_id for step in engine.submit(SYSTEM, 2, GREEDY, prefix_group="x")
        ]
        assert cached("a", SYSTEM) == 0
        assert cached("b", SYSTEM) == cached(None, SYSTEM) == 0
        assert cached("a", SYSTEM) == cached("b", SYSTEM) == cached(None, SYSTEM) == 699
        assert cached("c", ids[:300]) == 0
        assert cached("a", ids[:300]) == 299
        engine.save_prompt_cache(tmp_path / "a.cache")
    with BatchEngine(
        bundled, sequence_length=CONTEXT, cache_tokens=8 * CONTEXT
    ) as engine:
        # Those of the other groups would be more than twice as many.
        assert (
            len(SYSTEM) < engine.load_prompt_cache(tmp_path / "a.cache") < 2 * len(SYSTEM)
        )
        assert cached("a", SYSTEM) == 0
        assert cached(None, SYSTEM) == 699


def test_the_least_recently_used_prefix_goes_first(bundled):
    a, b, c = ([number] * 300 for number in (11, 12, 13))
    with batch(bundled, cache_tokens=1024) as engine:
        assert [cached(engine, ids) for ids in (a, b, a)] == [0, 0, 299]
        assert cached(engine, c) == 0  # in the place of b
        assert cached(engine, a) == 299
        assert cached(engine, b) < 299


def test_what_never_fits_is_refused_with_the_arithmetic(bundled):
    with batch(bundled, cache_tokens=300) as engine:
        text = r"must fit into the cache: 500 tokens \+ 14 new ones - 1 > 512 positions$"
        with pytest.raises(PromptError, match=text):
            engine.submit([1] * 500, 14)
        assert len(list(engine.submit([1] * 500, 13, GREEDY))) <= 13
        with pytest.raises(ContextFullError):
            engine.submit([1] * CONTEXT, 1)
        for wrong, error in (
            ([], PromptError),
            ("a", PromptError),
            ([1 << 20], TokenIdError),
        ):
            with pytest.raises(error):
                engine.submit(wrong)
        for name in ("time_limit", "prompt_candidates", "candidates"):
            with pytest.raises(PromptError, match=name):
                engine.submit([1], **{name: -1})
        assert engine.counters().failed == 0
    with pytest.raises(
        NotEnoughMemoryError, match=r"2 \* 4 layers \* 1099511627776 positions"
    ):
        BatchEngine(bundled, cache_tokens=1 << 40)
    for name in ("cache_tokens", "max_requests", "max_waiting", "prompt_chunk"):
        with pytest.raises(PromptError, match=name):
            BatchEngine(bundled, **{name: 0})


def test_the_queue_is_bounded_and_in_order(bundled):
    order: list[int] = []
    with batch(bundled, 64, max_requests=1, max_waiting=3) as engine:
        with engine._passing:
            requests = [
                engine.submit(
                    [number, 3], 2, GREEDY, deliver=lambda _, n=number: order.append(n)
                )
                for number in range(3)
            ]
            with pytest.raises(QueueFullError, match="3 requests wait already"):
                engine.submit([3], 1)
            requests[1].cancel()
            requests[1].cancel()
            assert engine.counters().waiting == 2
            last = engine.submit([3], 1, GREEDY)
        list(last)
    assert order == sorted(order)
    assert set(order) == {0, 2}
    assert engine.counters().cancelled == 1


def test_clients_take_turns_and_the_longest_line_gives_way(bundled):
    order: list[tuple[str, int]] = []
    errors: list[tuple[str, int, str]] = []

    def submit(engine: BatchEngine, client: str, number: int) -> Any:
        def deliver(item: Step | Exception) -> None:
            if isinstance(item, Exception):
                errors.append((client, number, str(item)))
            else:
                order.append((client, number))

        return engine.submit([number, 3], 1, GREEDY, deliver=deliver, client=client)

    with batch(bundled, 64, max_requests=1, max_waiting=5) as engine:
        with engine._passing:
            requests = [submit(engine, "a", number) for number in range(5)]
            requests += [submit(engine, "b", 7), submit(engine, "c", 9)]
            with pytest.raises(QueueFullError, match="5 requests wait already"):
                submit(engine, "a", 6)
        wait_until(lambda: all(request.is_over for request in requests))
    assert errors == [("a", n, "[submit] 5 requests wait already") for n in (4, 3)]
    assert order == [("a", 0), ("b", 7), ("c", 9), ("a", 1), ("a", 2)]


def test_a_request_waits_until_the_blocks_that_it_may_need_are_free(bundled):
    with batch(bundled, cache_tokens=1024) as engine:
        long = engine.submit([5] * 600, 400, GREEDY, mask=Slow(bundled))
        next(long)
        short = engine.submit([6], 5, GREEDY)
        next(long)
        assert (engine.counters().running, engine.counters().waiting) == (1, 1)
        assert not short.is_over
        long.cancel()
        assert list(long) == []
        assert ended(short) == alone(bundled, job_of([6], 5))[0]


def test_a_long_prompt_is_read_in_chunks_between_the_steps_of_others(bundled):
    with batch(bundled, prompt_chunk=100) as engine:
        with engine._passing:
            other = engine.submit([7, 8], 60, GREEDY, mask=Endless(bundled))
            long = engine.submit(SYSTEM, 1, GREEDY)
            before = engine.counters()
        list(long)
        after = engine.counters()
        list(other)
    assert after.passes - before.passes >= 7
    assert after.new_tokens - before.new_tokens >= 7


def test_a_cancelled_request_frees_its_blocks_within_a_pass(bundled):
    with batch(bundled) as engine:
        requests = [
            engine.submit([n] * 300, 700, GREEDY, mask=Slow(bundled)) for n in range(3)
        ]
        for request in requests:
            next(request)
        requests[1].cancel()
        assert list(requests[1]) == []
        wait_until(lambda: requests[1].is_over)
        assert engine.counters().running == 2
        requests[0].cancel()
        requests[2].cancel()
    assert engine.counters().cancelled == 3


def test_a_time_limit_ends_an_answer_with_its_next_step(bundled):
    with batch(bundled) as engine:
        sampling = SamplingArgs(1.5, top_k=0, seed=2)
        request = engine.submit([5], 900, sampling, time_limit=1.0, mask=Slow(bundled))
        steps = ended(request)
        assert steps[-1][2] == "time limit"
        single = InferenceEngine(bundled, CONTEXT, speculation=False)
        whole = single.generate([5], len(steps), sampling, mask=Endless(bundled))
        assert [step[0] for step in steps] == [step.token_id for step in whole]
        with engine._passing:
            late = engine.submit([5], 9, time_limit=0.01)
            time.sleep(0.02)
        with pytest.raises(TimeLimitError, match="over before the first token"):
            list(late)
    assert engine.counters().failed == 1


def test_close_ends_what_runs_and_what_waits(bundled):
    threads = threading.active_count()
    with batch(bundled, max_requests=1) as engine:
        runs, waits = (
            engine.submit([5, number], 900, mask=Slow(bundled)) for number in range(2)
        )
        next(runs)
        assert threading.active_count() == threads + 1
        engine.close()
    assert threading.active_count() == threads
    for request in (runs, waits):
        with pytest.raises(ClosedError):
            list(request)
        assert list(request) == []
    with pytest.raises(ClosedError):
        engine.submit([5])


def test_an_engine_whose_thread_does_not_start_says_so_and_tries_again(
    bundled, monkeypatch
):
    class RefusedThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    ids = bundled.tokenizer.encode("hi", bos=True, eos=False)
    with BatchEngine(bundled, sequence_length=256) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(
                batch_module, "threading", SimpleNamespace(Thread=RefusedThread)
            )
            rule = (
                r"\[submit\] the thread of the engine must start: the system refuses it"
            )
            for ask in (engine.check_ready, lambda: engine.submit(ids, 2)):
                with pytest.raises(ThreadRefusedError, match=rule):
                    ask()
        assert not engine.is_running
        assert engine.counters().waiting == 0
        engine.check_ready()
        assert len(list(engine.submit(ids, 2))) == 2
    assert not engine.is_running
    with pytest.raises(ClosedError):
        engine.check_ready()


def test_close_may_let_what_runs_finish(bundled):
    engine = BatchEngine(bundled, sequence_length=CONTEXT)
    request = engine.submit([5, 6], 30, GREEDY)
    next(request)
    engine.close(timeout=None)
    assert len(list(request)) + 1 == len(alone(bundled, job_of([5, 6], 30))[0])


def test_an_engine_that_is_not_closed_lets_the_process_end():
    code = """
from src import load_model
from src.inference import BatchEngine
from tests.inference.endless import Endless
engine = BatchEngine(load_model(), sequence_length=4096)
request = engine.submit([5], 4000, mask=Endless(engine.model))
print(next(request).token_id >= 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (b"True\n", b"", 0)


class OnlyEven:
    """Allows even ids, in one of the forms that a mask may have, and notes what was
    drawn.
    """

    def __init__(self, form: str) -> None:
        self.taken = list[int]()
        self.form = form

    def allowed(self) -> Any:
        if self.form == "nothing":
            return np.zeros(10, bool)
        if self.form == "none" or len(self.taken) % 2:
            return None
        bools = np.arange(4000) % 2 == 0  # fewer than the vocabulary has
        if self.form == "bools":
            return bools
        words = np.packbits(bools, bitorder="little").view(np.uint32)
        return words.astype(np.int32) if self.form == "signed" else words

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)
        if self.form == "fails" and len(self.taken) == 3:
            raise ValueError("no more")


@pytest.mark.parametrize("form", ["bools", "words", "signed", "none", "fails", "nothing"])
def test_a_mask_is_asked_before_each_draw_and_told_each_token(bundled, form):
    sampling = SamplingArgs(1.5, top_k=0, top_p=1.0, seed=4)
    expected = alone(bundled, job_of([5, 6], 12, sampling))[0]
    mask = OnlyEven(form)
    found = list[Step]()
    with batch(bundled, 64) as engine:
        request = engine.submit([5, 6], 12, sampling, candidates=50, mask=mask)
        neighbour = engine.submit([5, 6], 12, sampling)
        if form in ("fails", "nothing"):
            error, drawn = (ValueError, 3) if form == "fails" else (GrammarError, 0)
            with pytest.raises(error):
                found.extend(request)
            assert len(mask.taken) == drawn
        else:
            found.extend(request)
            assert mask.taken == [step.token_id for step in found]
        assert ended(neighbour) == expected
    if form == "none":
        assert [step.token_id for step in found] == [step[0] for step in expected]
    else:
        assert all(step.token_id % 2 == 0 for step in found[::2])
        tops = [candidate for step in found[:1] for candidate in step.choice.candidates]
        assert all(candidate.token_id % 2 == 0 for candidate in tops)


def test_the_prompt_is_explained_as_the_model_holds_it(bundled):
    ids = SYSTEM[:150]
    logits = bundled.transformer.forward(
        InferenceEngine(bundled, 256).context, ids, all_positions=True
    ).numpy().astype(np.float64)  # fmt: skip
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    with BatchEngine(bundled, sequence_length=256) as engine:
        list(engine.submit(ids, 1))
        request = engine.submit(ids, 4, GREEDY, prompt_candidates=2)
        assert ended(request) == alone(bundled, job_of(ids, 4))[0]
        assert request.stats.cached_tokens == 0
        choices = request.prompt_choices
    assert len(choices) == len(ids)
    assert choices[0] is None
    for at, choice in enumerate(choices[1:], 1):
        assert (choice.token_id, choice.position) == (ids[at], at)
        found = {c.token_id: c.log_probability for c in choice.candidates}
        assert found[ids[at]] == pytest.approx(expected[at - 1, ids[at]], abs=1e-9)
        best = int(expected[at - 1].argmax())
        assert choice.candidates[0].token_id == best
        assert len(found) in (2, 3)


def test_steps_and_errors_can_be_delivered_instead(bundled):
    got: list[Any] = []

    def take(item: Step | Exception) -> None:
        assert threading.current_thread().name == "BatchEngine"
        got.append(item)

    def fail(_item: object) -> None:
        raise RuntimeError("the reader has gone")

    with batch(bundled, 64) as engine:
        gone = engine.submit([5], 9, GREEDY, deliver=fail)
        request = engine.submit([5], 9, GREEDY, deliver=take)
        wait_until(lambda: gone.is_over and request.is_over)
    assert ended(got) == alone(bundled, job_of([5], 9))[0]
    assert request.stats.new_tokens == len(got)


def test_weights_that_were_rewritten_end_each_answer_and_the_cache(bundled, monkeypatch):
    with batch(bundled, 64) as engine:
        list(engine.submit([5] * 20, 2, GREEDY))
        request = engine.submit([6, 7], 5, GREEDY)

        def changed(_self: object) -> None:
            raise CheckpointError("rewritten")

        monkeypatch.setattr(type(bundled.checkpoint), "check_unchanged", changed)
        with pytest.raises(CheckpointError):
            list(request)
        with pytest.raises(CheckpointError):
            engine.submit([5])
        monkeypatch.undo()
        assert engine.counters().blocks_cached == 0
        assert len(list(engine.submit([5] * 20, 2, GREEDY))) == 2


def test_a_pass_that_fails_ends_its_requests_and_the_engine_goes_on(bundled, monkeypatch):
    def refuse(*_: object) -> None:
        raise MemoryError

    with batch(bundled, 64) as engine:
        with engine._passing:
            requests = [engine.submit([5, number], 5, GREEDY) for number in range(3)]
            monkeypatch.setattr(BlockPool, "run", refuse)
        for request in requests:
            with pytest.raises(NotEnoughMemoryError):
                list(request)
        monkeypatch.undo()
        assert ended(engine.submit([5], 5, GREEDY)) == alone(bundled, job_of([5], 5))[0]


def test_a_trace_and_a_batch_exclude_each_other(bundled):
    error = pytest.raises(InferenceError, match="shows one sequence")
    with batch(bundled, 64) as engine, recorded(bundled.args), error:
        engine.submit([5])
