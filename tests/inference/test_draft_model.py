"""A smaller model that drafts changes how long an answer takes, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.inference import InferenceEngine, SamplingArgs
from src.inference import speculation as speculation_module
from src.inference.speculation import CachedSequence, DraftLength, DraftModel, PassCosts
from src.ml import bfloat16
from src.model import LlamaTransformer, Model, ModelError, load_model
from tests.inference.drafts import costs_of, draft_always
from tests.inference.test_speculation import PROMPT, SETTINGS, recorded
from tests.model.tiny import BYTES_VOCAB, CONFIGS, Tiny, write_meta_directory


def of(directory: Path, config: Tiny, seed: int, tokenizer: bool = False) -> Model:
    return load_model(write_meta_directory(directory, config, bfloat16, tokenizer, seed))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return of(tmp_path_factory.mktemp("bare"), BYTES_VOCAB, 1)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of the same vocabulary that knows nothing of the first one."""
    return of(tmp_path_factory.mktemp("other"), BYTES_VOCAB, 2)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts as many tokens as allowed, whether it pays or not."""
    draft_always(monkeypatch)


def plain_and_drafted(model: Model, drafter: Model, *arguments: Any) -> InferenceEngine:
    """Checks that an answer with drafts is the plain one; returns the engine that drafted."""
    plain = InferenceEngine(model, 256, speculation=False)
    drafting = InferenceEngine(model, 256, draft_model=drafter)
    expected = recorded(plain, plain.generate(*arguments))
    assert recorded(drafting, drafting.generate(*arguments)) == expected
    return drafting


@SETTINGS
def test_the_answer_is_the_plain_one_step_by_step(
    bare: Model, other: Model, eager: None, sampling: SamplingArgs
) -> None:
    stats = plain_and_drafted(bare, other, PROMPT, 60, sampling).last_stats
    assert stats is not None
    assert stats.drafted_tokens > stats.accepted_tokens


@SETTINGS
def test_a_model_that_drafts_for_itself_is_always_right(
    bare: Model, eager: None, sampling: SamplingArgs
) -> None:
    """Also where tokens are drawn: the draft takes the random numbers of the answer."""
    stats = plain_and_drafted(bare, bare, PROMPT, 60, sampling).last_stats
    assert stats is not None
    assert stats.accepted_tokens == stats.drafted_tokens == 59 - 8  # in 8 steps


def test_a_second_prompt_runs_what_is_new_in_it_alone(
    bare: Model, other: Model, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_beyond_the_context_of_the_draft_model_there_are_no_drafts(
    bare: Model, eager: None
) -> None:
    args = replace(bare.args, max_context_length=len(PROMPT) + 20)
    drafter = replace(bare, args=args, transformer=LlamaTransformer(args, bare.tensors))
    stats = plain_and_drafted(bare, drafter, PROMPT, 60, SamplingArgs(temperature=0)).last_stats
    assert stats is not None
    assert 14 <= stats.accepted_tokens == stats.drafted_tokens <= 20


def test_a_draft_model_that_has_no_numbers_changes_nothing(
    bare: Model, other: Model, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = LlamaTransformer.forward

    def broken(self: LlamaTransformer, *arguments: Any, **more: Any) -> Any:
        logits = forward(self, *arguments, **more)
        if self is other.transformer:
            logits.numpy()[:] = np.nan
        return logits

    monkeypatch.setattr(LlamaTransformer, "forward", broken)
    stats = plain_and_drafted(bare, other, PROMPT, 20, SamplingArgs(seed=1)).last_stats
    assert stats is not None
    assert stats.drafted_tokens == 0


def test_an_interrupt_while_the_draft_model_runs_loses_nothing(
    bare: Model, other: Model, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InferenceEngine(bare, 256, draft_model=other)
    greedy = SamplingArgs(temperature=0)
    expected = [step.token_id for step in engine.generate(PROMPT, 30, greedy)]
    forward = LlamaTransformer.forward
    for stop in range(1, 30):
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


def test_another_vocabulary_is_refused(bare: Model, tmp_path: Path) -> None:
    small = of(tmp_path / "small", CONFIGS[0], 1)
    with pytest.raises(ModelError, match=r"vocabulary: expected the 512 tokens .*, got 131"):
        InferenceEngine(bare, 64, draft_model=small)
    one = of(tmp_path / "one", BYTES_VOCAB, 1, tokenizer=True)
    two = of(tmp_path / "two", BYTES_VOCAB, 2, tokenizer=True)
    InferenceEngine(one, 64, draft_model=two)  # the twin that is used
    assert two.tokenizer is not None
    two.tokenizer._token_bytes = [*two.tokenizer._token_bytes]
    two.tokenizer._token_bytes[77] = b"other"
    with pytest.raises(ModelError, match=r"two: vocabulary: .* got another token 77"):
        InferenceEngine(one, 64, draft_model=two)


def test_rows_of_padding_are_neither_drafted_nor_run(
    bare: Model, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DraftModel(bare, 64, vocab_size=300)
    sampler = speculation_module.Sampler(SamplingArgs(temperature=5.0, top_k=0, top_p=1.0, seed=2))
    model.begin([1, 2, 3], sampler)
    lengths = set()
    for _ in range(20):
        found = model.match()
        assert found is not None
        tokens = model.guess(found[1], 4)
        lengths.add(len(tokens))
        assert all(token < 300 for token in tokens)
        model.append(int(sampler.sample(np.ones(300, np.float32), 0)))
    assert len(lengths) > 1
    model.append(400)
    assert model.guess(25, 4) == []


def test_a_dear_draft_model_is_given_up_and_tried_again() -> None:
    costs = costs_of(0.03)
    length = DraftLength(costs)
    key = speculation_module.WHOLE_TEXT
    assert length.best(key, 7, 0.1) > 0
    assert length.best(key, 7, 2.0) == 0  # a token takes twice as long as a plain step
    for _ in range(60):
        length.note_guess(key, False)
    assert length.best(key, 7, 0.1) == 0
    assert any(length.best(key, 7, 0.1) for _ in range(300))


def test_a_draft_model_may_cost_more_than_a_look_up() -> None:
    look_up, model = PassCosts(), PassCosts(speculation_module.MODEL_STAKE)
    for costs in (look_up, model):
        costs.note_plain(10.0)
    assert look_up.credit == pytest.approx(0.1)
    assert model.credit == pytest.approx(0.5)
