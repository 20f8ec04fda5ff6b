"""One engine belongs to one call at a time; one model serves engines in several
threads.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from src import ml
from src.inference import InferenceEngine, InferenceError, Message, SamplingArgs, Step
from src.inference import engine as engine_module
from src.inference.engine import Call
from src.model import Model
from tests.inference.endless import Endless

THREADS = 6
IN_USE = "this engine is in use by another thread"
GREEDY = SamplingArgs(temperature=0.0)
COUNTRIES = ("Ohio", "Turkey", "Kenya", "France", "Japan", "Peru", "Norway", "Egypt")
QUESTIONS = [f"What is the capital of {country}?" for country in COUNTRIES]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _kernels_of_two_threads() -> Iterator[None]:
    before = ml.get_num_threads()
    ml.set_num_threads(2)
    yield
    ml.set_num_threads(before)


@pytest.fixture
def engine(bundled: Model) -> InferenceEngine:
    return InferenceEngine(bundled, 64)


def answer(engine: InferenceEngine, question: str) -> str:
    return "".join(
        step.text for step in engine.chat([Message("user", question)], 24, GREEDY)
    )


def eight_steps(engine: InferenceEngine) -> Iterator[Step]:
    """Begins an answer of eight tokens."""
    return engine.generate([5, 6, 7], 8, GREEDY, mask=Endless(engine.model))


@pytest.fixture(scope="module")
def expected(bundled: Model) -> dict[str, str]:
    return {
        question: answer(InferenceEngine(bundled, 64), question) for question in QUESTIONS
    }


def elsewhere(do: Callable[[], Any]) -> Any:
    """Does something in another thread; returns its result or raises what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


def in_threads(do: Callable[[int], Any]) -> list[Any]:
    """Does something in all threads at once, with the number of each."""
    start = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        return list(
            pool.map(lambda number: (start.wait(), do(number))[1], range(THREADS))
        )


def ask_in_threads(
    engines: list[InferenceEngine], questions: int, expected: dict[str, str]
) -> tuple[int, int]:
    """Asks questions in as many threads as there are engines; returns answers and
    refusals.
    """

    def ask(number: int) -> list[str]:
        refusals = []
        for at in range(questions):
            question = QUESTIONS[(number + at) % len(QUESTIONS)]
            try:
                assert answer(engines[number], question) == expected[question]
            except InferenceError as error:
                refusals.append(str(error))
        return refusals

    refusals = [text for refused in in_threads(ask) for text in refused]
    assert set(refusals) <= {IN_USE}
    return THREADS * questions - len(refusals), len(refusals)


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Lets threads change at nearly every step of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


LONG = pytest.param(12, 100, marks=pytest.mark.slow)


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize(("runs", "questions"), [(1, 4), LONG])
def test_threads_on_one_engine_get_right_answers_or_are_refused(
    engine, expected, runs, questions
):
    for _ in range(runs):
        answered, refused = ask_in_threads([engine] * THREADS, questions, expected)
        assert answered > 0
        assert refused > 0
        assert {q: answer(engine, q) for q in QUESTIONS} == expected


@pytest.mark.parametrize(("runs", "questions"), [(1, 4), LONG])
def test_engines_of_several_threads_share_a_model(bundled, expected, runs, questions):
    engines = [InferenceEngine(bundled, 64) for _ in range(THREADS)]
    for _ in range(runs):
        found = ask_in_threads(engines, questions, expected)
        assert found == (THREADS * questions, 0)


def test_another_thread_is_refused_until_the_answer_ends(engine):
    plain = [step.token_id for step in eight_steps(InferenceEngine(engine.model, 64))]
    steps = eight_steps(engine)
    # Nothing is in use before the first step.
    elsewhere(lambda: list(engine.generate([1, 2], 2, forced_ids=[5, 6])))
    found = [next(steps).token_id]
    cached = engine.cached_ids
    for other in (
        lambda: next(engine.generate([1, 2], 2, forced_ids=[5, 6])),
        engine.reset,
    ):
        with pytest.raises(InferenceError, match=f"^{IN_USE}$"):
            elsewhere(other)
        assert engine.cached_ids == cached
    found += [step.token_id for step in steps]
    assert found == plain
    assert (
        len(elsewhere(lambda: list(engine.generate([1, 2], 2, forced_ids=[5, 6])))) == 2
    )


def test_the_last_step_ends_the_use_before_the_iterator_is_asked_again(engine):
    steps = engine.generate([5, 6], 1, GREEDY)
    assert next(steps).stop_reason is not None
    elsewhere(engine.reset)
    assert list(steps) == []


@pytest.mark.parametrize("ending", ["closed", "dropped", "failed"])
def test_an_answer_that_is_given_up_leaves_the_engine_to_others(engine, ending):
    steps: Any = eight_steps(engine)
    next(steps)
    kept = None
    if ending == "closed":
        steps.close()
    elif ending == "dropped":
        del steps
    else:
        with pytest.raises(KeyboardInterrupt) as kept:  # its traceback keeps the frames
            steps.throw(KeyboardInterrupt)
    assert (
        len(elsewhere(lambda: list(engine.generate([1, 2], 2, forced_ids=[5, 6])))) == 2
    )
    del kept


def test_a_thread_that_ended_holds_nothing(engine):
    kept: Any = eight_steps(engine)
    elsewhere(lambda: next(kept))
    assert len(list(engine.generate([1, 2], 2, forced_ids=[5, 6]))) == 2
    with pytest.raises(InferenceError, match="ended by a newer call"):
        next(kept)


def test_steps_may_be_taken_by_one_thread_after_the_other(engine):
    plain = [step.token_id for step in eight_steps(InferenceEngine(engine.model, 64))]
    steps = eight_steps(engine)
    assert [elsewhere(lambda: next(steps)).token_id for _ in range(8)] == plain


@pytest.mark.usefixtures("switching_often")
def test_of_threads_that_want_the_engine_at_once_one_gets_it(engine):
    inside: list[int] = []

    def take(_number: int) -> int:
        most = 0
        for _ in range(1000):
            call = Call()
            try:
                engine._ownership.take(call)
            except InferenceError:
                continue
            inside.append(1)
            most = max(most, len(inside))
            inside.pop()
            call.is_over = True
        return most

    assert max(in_threads(take)) == 1
    engine.reset()


def test_a_thread_that_stops_while_it_takes_the_engine_holds_up_nobody(
    engine, monkeypatch
):
    """As one does, for ever, in a process that another thread forks at that time."""
    own = threading.current_thread()
    is_there = threading.Event()
    may_go_on = threading.Event()
    current_thread = threading.current_thread

    def stopped() -> threading.Thread:
        if current_thread() is not own:
            is_there.set()
            assert may_go_on.wait(20)
        return current_thread()

    other = threading.Thread(target=engine.reset)
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "threading", SimpleNamespace(current_thread=stopped))
        other.start()
        assert is_there.wait(20)
        # A lock is let go then, and the test fails.
        after = threading.Timer(10, may_go_on.set)
        after.start()
        assert len(list(engine.generate([1, 2], 2, forced_ids=[5, 6]))) == 2
        assert not may_go_on.is_set()
        after.cancel()
        may_go_on.set()
        other.join()


FORK = """
import os
from src.inference import InferenceEngine
from src.model import load_model
engine = InferenceEngine(load_model(), 64)
steps = engine.generate([5, 6, 7], 8, forced_ids=[5] * 8)
next(steps)
child = os.fork()
first = [step.token_id for step in steps]
if child == 0:
    os._exit(0 if len(first) == 7 else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_an_answer_goes_on_in_a_forked_process():
    subprocess.run([sys.executable, "-c", FORK], cwd=REPOSITORY, check=True, timeout=60)


EXIT = """
import sys, threading, time
from src.inference import InferenceEngine
from src.model import load_model

engine = InferenceEngine(load_model(), sequence_length=512)
started = threading.Event()

def run():
    while True:
        for step in engine.generate([1, 2, 3], 400, forced_ids=[5] * 400):
            started.set()

threading.Thread(target=run, daemon=True).start()
assert started.wait(60)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("seconds", ["0", "0.03"])
def test_the_interpreter_ends_in_the_middle_of_an_answer(seconds):
    command = [sys.executable, "-c", EXIT, seconds]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
