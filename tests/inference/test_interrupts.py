"""Ctrl-C may land anywhere: the next answer is what it would have been."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from src import ml
from src.inference import InferenceEngine, SamplingArgs
from src.inference import engine as engine_module
from src.inference.speculation import Drafter
from src.model import Model
from tests.inference.drafts import draft_always
from tests.model.tiny import BYTES_VOCAB, token_ids

GREEDY = SamplingArgs(temperature=0.0)
NEW = 4
PROMPT = token_ids(BYTES_VOCAB, 3, seed=5) * 2
FOLLOWING = [*PROMPT, 9, 8, 7]
TENSOR_METHODS = ("reshape", "slice", "set_slice", "to", "numpy")


@pytest.fixture(autouse=True)
def _small_chunks_and_long_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 4)
    draft_always(monkeypatch)


class Interrupter:
    """Counts the calls of all ops, and raises before or after one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.raise_at = -1
        self.after = False
        for name in ml.ops.__all__:
            monkeypatch.setattr(ml, name, self._wrapped(getattr(ml.ops, name)))
        for name in TENSOR_METHODS:
            monkeypatch.setattr(ml.Tensor, name, self._wrapped(ml.Tensor.__dict__[name]))

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counting(*arguments: Any, **named: Any) -> Any:
            call = self.calls
            self.calls = self.calls + 1
            if call == self.raise_at and not self.after:
                raise KeyboardInterrupt
            result = function(*arguments, **named)
            if call == self.raise_at:
                raise KeyboardInterrupt
            return result

        return counting


@pytest.fixture
def interrupter(model: Model, monkeypatch: pytest.MonkeyPatch) -> Interrupter:
    return Interrupter(monkeypatch)


def answer(engine: InferenceEngine, prompt: list[int]) -> list[int]:
    return [step.token_id for step in engine.generate(prompt, NEW, GREEDY)]


@pytest.mark.parametrize(
    "stride", [13, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("speculation", [False, True], ids=["plain", "drafting"])
def test_an_interrupt_at_any_op_leaves_the_next_answer_as_it_would_have_been(
    model, interrupter, speculation, after, stride
):
    engine = InferenceEngine(model, 32, speculation=speculation)
    interrupter.calls = 0
    first = answer(engine, PROMPT)
    count = interrupter.calls
    expected = answer(InferenceEngine(model, 32), FOLLOWING)
    assert count > 50
    interrupter.after = after
    whole = [*PROMPT, *first]
    for call in range(0, count, stride):
        # A new engine records its steps anew; only then all ops are called.
        engine = InferenceEngine(model, 32, speculation=speculation)
        interrupter.calls = 0
        interrupter.raise_at = call
        with pytest.raises(KeyboardInterrupt):
            answer(engine, PROMPT)
        interrupter.raise_at = -1
        cached = list(engine.cached_ids)
        assert cached == whole[: len(cached)]
        assert engine.context.length >= len(cached) or not cached
        assert answer(engine, FOLLOWING if call % 2 else PROMPT) == (
            expected if call % 2 else first
        )


@pytest.mark.parametrize("name", ["observe", "draft", "note_rows"])
@pytest.mark.parametrize("call", range(3))
def test_an_interrupt_between_the_steps_does_the_same(model, monkeypatch, name, call):
    engine = InferenceEngine(model, 32)
    expected = answer(InferenceEngine(model, 32), FOLLOWING)
    original = getattr(Drafter, name)
    calls = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        result = original(*arguments)
        if len(calls) == call + 1:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Drafter, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(engine.generate(PROMPT, None, GREEDY))
    assert answer(engine, FOLLOWING) == expected
