"""A smaller model that drafts changes how long an answer takes, and nothing else."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from src.inference import InferenceEngine, SamplingArgs
from src.inference import speculation as speculation_module
from src.inference.speculation import CachedSequence, Drafter, DraftModel, PassCosts
from src.ml import bfloat16
from src.model import LlamaTransformer, Model, ModelError, load_model
from tests.inference.drafts import costs_of, guess_and_draw
from tests.inference.test_speculation import PROMPT, SETTINGS, both
from tests.model.tiny import BYTES_VOCAB, CONFIGS, write_meta_directory


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of the same vocabulary that knows nothing of the first one."""
    directory = tmp_path_factory.mktemp("other")
    return load_model(write_meta_directory(directory, BYTES_VOCAB, bfloat16, seed=2))


@SETTINGS
def test_the_answer_is_the_plain_one_step_by_step(bare, other, eager, sampling):
    _, stats = both(bare, 256, PROMPT, 60, sampling, draft_model=other)
    assert stats.drafted_tokens > stats.accepted_tokens


@SETTINGS
def test_a_model_that_drafts_for_itself_is_always_right(bare, eager, sampling):
    """Also where tokens are drawn: the draft takes the random numbers of the answer."""
    _, stats = both(bare, 256, PROMPT, 60, sampling, draft_model=bare)
    assert stats.accepted_tokens == stats.drafted_tokens == 59 - 8  # in 8 steps


def test_a_second_prompt_runs_what_is_new_in_it_alone(bare, other, eager, monkeypatch):
    engine = InferenceEngine(bare, 256, draft_model=other)
    answer = [step.token_id for step in engine.generate(PROMPT, 10, SamplingArgs(temperature=0))]
    lengths: list[int] = []
    run = CachedSequence.run

    def counted(cached: CachedSequence, ids: list[int], drafted: Any = ()) -> Any:
        if cached.model is other:
            lengths.append(len(ids))
        return run(cached, ids, drafted)

    monkeypatch.setattr(CachedSequence, "run", counted)
    next(engine.generate([*PROMPT, *answer[:8], 7, 8, 9], 10))
    assert 3 <= lengths[0] <= 4


def test_beyond_the_context_of_the_draft_model_there_are_no_drafts(bare, eager):
    args = replace(bare.args, max_context_length=len(PROMPT) + 20)
    drafter = replace(bare, args=args, transformer=LlamaTransformer(args, bare.tensors))
    _, stats = both(bare, 256, PROMPT, 60, SamplingArgs(temperature=0), draft_model=drafter)
    assert 14 <= stats.accepted_tokens == stats.drafted_tokens <= 20


def test_a_draft_model_that_has_no_numbers_changes_nothing(bare, other, eager, monkeypatch):
    forward = LlamaTransformer.forward

    def broken(self: LlamaTransformer, *arguments: Any, **more: Any) -> Any:
        logits = forward(self, *arguments, **more)
        if self is other.transformer:
            logits.numpy()[:] = np.nan
        return logits

    monkeypatch.setattr(LlamaTransformer, "forward", broken)
    _, stats = both(bare, 256, PROMPT, 20, SamplingArgs(seed=1), draft_model=other)
    assert stats.drafted_tokens == 0


@pytest.mark.parametrize(
    "stride", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_an_interrupt_of_the_draft_model_loses_nothing(bare, other, eager, monkeypatch, stride):
    engine = InferenceEngine(bare, 256, draft_model=other)
    greedy = SamplingArgs(temperature=0)
    expected = [step.token_id for step in engine.generate(PROMPT, 30, greedy)]
    forward = LlamaTransformer.forward
    for stop in range(1, 30, stride):
        left = stop

        def interrupted(self: LlamaTransformer, *arguments: Any, **more: Any) -> Any:
            nonlocal left
            logits = forward(self, *arguments, **more)
            left -= self is other.transformer
            if left == 0 and self is other.transformer:
                raise KeyboardInterrupt
            return logits

        with monkeypatch.context() as patch:
            patch.setattr(LlamaTransformer, "forward", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(engine.generate(PROMPT[stop % 3 :], 30, greedy))
        assert [step.token_id for step in engine.generate(PROMPT, 30, greedy)] == expected


def test_another_vocabulary_is_refused(bare, model, tmp_path):
    small = load_model(write_meta_directory(tmp_path / "small", CONFIGS[0], bfloat16))
    with pytest.raises(ModelError, match=r"vocabulary: expected the 512 tokens .*, got 131"):
        InferenceEngine(bare, 64, draft_model=small)
    two = load_model(write_meta_directory(tmp_path / "two", BYTES_VOCAB, bfloat16, tokenizer=True))
    InferenceEngine(model, 64, draft_model=two)  # the twin that is used
    two.tokenizer._token_bytes = [*two.tokenizer._token_bytes]
    two.tokenizer._token_bytes[77] = b"other"
    with pytest.raises(ModelError, match=r"two: vocabulary: .* got another token 77"):
        InferenceEngine(model, 64, draft_model=two)


def test_rows_of_padding_are_neither_drafted_nor_run(model, eager):
    model = DraftModel(model, 64, replace(model, args=replace(model.args, vocab_size=300)))
    sampler = speculation_module.Sampler(SamplingArgs(temperature=5.0, top_k=0, top_p=1.0, seed=2))
    model.begin([1, 2, 3], sampler)
    lengths = set()
    for _ in range(20):
        found = model.match()
        tokens = model.guess(found[1], 4)
        lengths.add(len(tokens))
        assert all(token < 300 for token in tokens)
        model.append(int(sampler.sample(np.ones(300, np.float32), 0)))
    assert len(lengths) > 1
    model.append(400)
    assert model.guess(25, 4) == []


def test_a_dear_draft_model_is_given_up_and_tried_again():
    guesser = SimpleNamespace(token_seconds=0.1, append=lambda token: None)
    drafter = Drafter(guesser, costs_of(0.03))
    assert drafter.best_count(7) > 0
    guesser.token_seconds = 2.0  # a token takes twice as long as a plain step
    assert drafter.best_count(7) == 0
    guesser.token_seconds = 0.1
    guess_and_draw(drafter, is_right=False, times=60)
    assert drafter.best_count(7) == 0
    assert any(drafter.best_count(7) for _ in range(300))


def test_a_draft_model_may_cost_more_than_a_look_up():
    look_up, model = PassCosts(), PassCosts(speculation_module.MODEL_STAKE)
    for costs in (look_up, model):
        costs.note_pass(0, 10.0)
    assert look_up.credit == pytest.approx(0.1)
    assert model.credit == pytest.approx(0.5)
