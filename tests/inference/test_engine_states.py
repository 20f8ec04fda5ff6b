"""Any series of prompts, also given up or broken off: each answer is that of a fresh
engine.
"""

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from src.inference import ContextFullError, InferenceEngine, SamplingArgs
from src.model import Model, TokenIdError
from tests.model.tiny import BYTES_VOCAB

LENGTH = 24
# Few tokens and short prompts, so that prompts often begin alike.
PROMPTS = st.lists(st.integers(97, 99), min_size=1, max_size=LENGTH - 1)
GREEDY = SamplingArgs(temperature=0.0)
SAMPLED = SamplingArgs(temperature=1.0, seed=3)
PENALISED = SamplingArgs(temperature=0.7, top_p=0.9, repeat_penalty=1.3, seed=4)
SAMPLINGS = st.sampled_from([GREEDY, SAMPLED, PENALISED])


class Prompts(RuleBasedStateMachine):
    """One engine, to which anything is done that a chat may do to it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.engine = InferenceEngine(model, LENGTH)
        self.sequence: list[int] = []

    def started(self, prompt: list[int], sampling: SamplingArgs) -> Any:
        self.sequence = list(prompt)
        return self.engine.generate(prompt, 5, sampling)

    @rule(prompt=PROMPTS, sampling=SAMPLINGS)
    def ask(self, prompt: list[int], sampling: SamplingArgs) -> None:
        answer = [step.token_id for step in self.started(prompt, sampling)]
        self.sequence += answer
        fresh = InferenceEngine(self.model, LENGTH, speculation=False)
        assert answer == [step.token_id for step in fresh.generate(prompt, 5, sampling)]

    @rule(kept=st.integers(0, LENGTH), more=PROMPTS, sampling=SAMPLINGS)
    def go_on_from_what_was_said(
        self, kept: int, more: list[int], sampling: SamplingArgs
    ) -> None:
        self.ask((self.sequence[:kept] + more)[: LENGTH - 1], sampling)

    @rule(
        prompt=PROMPTS, sampling=SAMPLINGS, steps=st.integers(1, 4), raises=st.booleans()
    )
    def break_off(
        self, prompt: list[int], sampling: SamplingArgs, steps: int, raises: bool
    ) -> None:
        answer = self.started(prompt, sampling)
        self.sequence += [step.token_id for step in itertools.islice(answer, steps)]
        if raises:
            with pytest.raises(KeyboardInterrupt):
                answer.throw(KeyboardInterrupt)
        else:
            answer.close()

    @rule(
        prompt=st.sampled_from(
            [[97] * LENGTH, [97] * 10 * LENGTH, [97, -1], [BYTES_VOCAB]]
        )
    )
    def ask_what_is_refused(self, prompt: list[int]) -> None:
        before = self.engine.cached_ids
        with pytest.raises((ContextFullError, TokenIdError)):
            list(self.engine.generate(prompt, 5))
        assert self.engine.cached_ids == before

    @rule()
    def forget(self) -> None:
        self.engine.reset()
        assert self.engine.cached_ids == ()

    @invariant()
    def the_cache_holds_the_beginning_of_the_last_sequence(self) -> None:
        cached = self.engine.cached_ids
        assert len(cached) <= LENGTH
        assert list(cached) == self.sequence[: len(cached)]


def test_any_series_of_prompts_is_answered_as_each_alone(bare):
    bounds = settings(max_examples=20, stateful_step_count=12, deadline=None)
    run_state_machine_as_test(lambda: Prompts(bare), settings=bounds)
