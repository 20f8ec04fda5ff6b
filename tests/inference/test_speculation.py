"""Drafts change how long an answer takes, and nothing else."""

import itertools
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from src.inference import InferenceEngine, NumericError, SamplingArgs, Step
from src.inference import speculation as speculation_module
from src.inference.blocks import BlockPool, Part
from src.inference.sampling import Sampler
from src.inference.speculation import Drafter, DraftModel, PassCosts, TextIndex
from src.ml import bfloat16
from src.model import LlamaTransformer, Model, ModelError, load_model
from tests.inference.drafts import costs_of, guess_and_draw
from tests.model.tiny import BYTES_VOCAB, CONFIGS, token_ids, write_meta_directory
from tools.runs import recorded as traced

GREEDY = SamplingArgs(temperature=0.0)
SAMPLED = SamplingArgs(temperature=0.5, top_k=8, seed=1)
PENALISED = SamplingArgs(temperature=0.4, top_k=0, top_p=0.8, repeat_penalty=1.1, seed=6)
# Among the tokens of a draft, and far from them.
BIASED = replace(
    SAMPLED, logit_bias={token: token % 7 - 3.0 for token in range(0, 280, 3)}
)
SETTINGS = pytest.mark.parametrize(
    "sampling",
    [GREEDY, SAMPLED, PENALISED, BIASED],
    ids=["greedy", "sampled", "penalised", "biased"],
)
# One phrase again and again, as texts have them.
PROMPT = token_ids(BYTES_VOCAB, 9, seed=5) * 4


@pytest.fixture
def foretell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Step]]:
    """Drafts what a plain run gives, with one wrong token at chosen places; returns its
    steps.
    """

    def foretold(
        model: Model,
        sequence_length: int,
        tokens: int | None,
        sampling: SamplingArgs = GREEDY,
        *,
        length: int = 5,
        wrong: Collection[int] = (),
    ) -> list[Step]:
        plain = InferenceEngine(model, sequence_length, speculation=False)
        steps = list(plain.generate(PROMPT, tokens, sampling))
        told = [step.token_id ^ (at in wrong) for at, step in enumerate(steps)]

        def draft(drafter: Any, most: int, *_: object) -> list[int]:
            seen = len(drafter._guesser._text) - len(PROMPT)
            tokens = told[seen : seen + min(most, length)]
            drafter._end_length = 2
            drafter._expected = [*tokens]
            drafter._rows = []
            return tokens

        monkeypatch.setattr(Drafter, "draft", draft)
        return steps

    return foretold


def recorded(engine: InferenceEngine, steps: Iterator[Step]) -> list[Any]:
    """Returns what a caller can see at each step, and the state that the engine is in."""
    seen = []
    for step in steps:
        stats = step.stats
        state = (engine.cached_ids, engine.context.length)
        counts = stats and (stats.prompt_tokens, stats.cached_tokens, stats.new_tokens)
        seen.append((step.token_id, step.text, step.stop_reason, counts, state))
    return seen


def both(
    model: Model,
    length: int,
    *arguments: Any,
    draft_model: Model | None = None,
    **more: Any,
) -> tuple[list[Any], Any]:
    """Checks that an answer with drafts is the plain one; returns it and the stats."""
    plain = InferenceEngine(model, length, speculation=False)
    drafting = InferenceEngine(model, length, draft_model=draft_model)
    expected = recorded(plain, plain.generate(*arguments, **more))
    assert plain.last_stats.drafted_tokens == 0
    assert recorded(drafting, drafting.generate(*arguments, **more)) == expected
    return expected, drafting.last_stats


@SETTINGS
def test_an_answer_with_drafts_is_the_plain_one_step_by_step(bare, eager, sampling):
    seen, stats = both(bare, 256, PROMPT, 100, sampling)
    assert len(seen) == 100
    assert stats.drafted_tokens > stats.accepted_tokens
    assert (stats.accepted_tokens > 0) is (sampling is not PENALISED)


@SETTINGS
@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize("wrong", [set(), {2}, {5, 6, 20}], ids=str)
def test_drafts_right_or_wrong_at_any_place_change_nothing(
    bare, foretell, sampling, length, wrong
):
    steps = foretell(bare, 128, 32, sampling, length=length, wrong=wrong)
    seen, stats = both(bare, 128, PROMPT, 32, sampling)
    assert [step[0] for step in seen] == [step.token_id for step in steps]
    if not wrong:
        # The first token comes with the prompt; each step gives its draft and one more.
        assert (
            stats.accepted_tokens
            == stats.drafted_tokens
            == 31 - (31 + length) // (length + 1)
        )


def test_the_context_is_filled_to_the_same_position(bare, foretell):
    length = len(PROMPT) + 20
    foretell(bare, length, None, length=7)
    seen, _ = both(bare, length, PROMPT, None, GREEDY)
    assert seen[-1][2] == "context full"
    assert len(seen) == 20


@pytest.mark.parametrize("ending", ["stop string", "eot"])
@pytest.mark.parametrize("at", range(1, 9))
def test_an_answer_ends_at_the_same_token_within_a_draft(
    model, foretell, monkeypatch, ending, at
):
    sampling = SamplingArgs(temperature=3.0, top_k=0, top_p=1.0, seed=3)
    steps = foretell(model, 128, 30, sampling, wrong={8})
    more: dict[str, Any] = {}
    if ending == "stop string":
        more["stop"] = [steps[at].text or "never there"]
    else:
        monkeypatch.setattr(model.tokenizer, "stop_ids", frozenset({steps[at].token_id}))
    seen, _ = both(model, 128, PROMPT, 30, sampling, **more)
    is_shown = ending == "eot" or steps[at].text
    assert seen[-1][2] == (ending if is_shown else "max tokens")


@pytest.mark.parametrize("steps", range(1, 11))
def test_an_answer_left_within_a_draft_leaves_the_state_of_a_plain_one(
    model, foretell, steps
):
    foretell(model, 128, 30, wrong={7})
    plain = InferenceEngine(model, 128, speculation=False)
    drafting = InferenceEngine(model, 128)
    for engine in (plain, drafting):
        iterator: Any = engine.generate(PROMPT, 30, GREEDY)
        for _ in range(steps):
            next(iterator)
        iterator.close()
    assert drafting.cached_ids == plain.cached_ids
    assert drafting.context.length == plain.context.length == len(plain.cached_ids)
    following = [*plain.cached_ids, 1, 2, 3]
    expected, found = (
        recorded(engine, engine.generate(following, 10, GREEDY))
        for engine in (plain, drafting)
    )
    assert found == expected


def test_logits_that_are_no_numbers_are_an_error_at_the_same_token(
    model, foretell, monkeypatch
):
    foretell(model, 128, 30)
    forward = model.transformer.forward
    bad = len(PROMPT) + 8

    def poisoned(context: Any, tokens: Any, start_pos: int = 0, **more: Any) -> Any:
        result = forward(context, tokens, start_pos, **more)
        rows = result.numpy()
        first = start_pos + len(tokens) - len(rows)
        rows[max(0, bad - 1 - first) :] = np.nan if bad <= first + len(rows) else rows[-1]
        return result

    monkeypatch.setattr(model.transformer, "forward", poisoned)
    for speculation in (False, True):
        engine = InferenceEngine(model, 128, speculation=speculation)
        steps = []
        with pytest.raises(NumericError, match=f"at position {bad}$"):
            steps.extend(engine.generate(PROMPT, 30, GREEDY))
        assert engine.last_stats.new_tokens == 8
        assert engine.cached_ids == ()


def test_a_trace_sees_one_token_per_step(model, foretell, monkeypatch):
    counts: list[int] = []
    forward = model.transformer.forward

    def counting(context: Any, tokens: Any, *more: Any, **named: Any) -> Any:
        counts.append(len(tokens))
        return forward(context, tokens, *more, **named)

    expected = [step.token_id for step in foretell(model, 256, 40)]
    monkeypatch.setattr(model.transformer, "forward", counting)
    iterator: Any = InferenceEngine(model, 256).generate(PROMPT, 40, GREEDY)
    steps = [next(iterator) for _ in range(13)]
    assert counts == [len(PROMPT), 6, 6]
    counts.clear()
    with traced(model.args):
        steps += [next(iterator) for _ in range(10)]
        assert counts == [1] * 10
    steps += iterator
    assert [step.token_id for step in steps] == expected


def test_the_longest_end_that_stood_earlier_is_found_where_it_stood_last():
    text = TextIndex([1, 2, 3, 9, 2, 3, 8, 1, 2, 3])
    assert text.match() == (3, 3)  # 1 2 3 was followed by the 9
    text.append(7)
    assert text.match() is None
    for token in (2, 3):
        text.append(token)
    assert text.match() == (2, 10)  # 2 3 stood last before the 7
    assert [TextIndex(short).match() for short in ([1], [1, 1], [1, 2, 3])] == [None] * 3


def test_a_copy_that_reaches_the_end_goes_on_with_itself():
    text = TextIndex([1, 2, 3, 4, 5])
    assert text.guess(2, 2) == [3, 4]
    assert text.guess(3, 7) == [4, 5, 4, 5, 4, 5, 4]


def test_of_a_very_long_text_the_end_is_indexed(monkeypatch):
    monkeypatch.setattr(speculation_module, "_LONGEST_TEXT", 6)
    assert TextIndex([5, 6, 1, 2, 3, 4, 5, 6]).match() is None
    monkeypatch.undo()
    assert TextIndex([5, 6, 1, 2, 3, 4, 5, 6]).match() == (2, 2)


def test_ids_beyond_the_characters_of_python_may_match_wrongly_and_are_guessed_wrongly():
    text = TextIndex([0xD800, sys.maxunicode + 8, 9, 0xD800, 7])
    assert text.match() == (2, 2)
    assert text.guess(0, 3) == [0xD800, 7, 9]


def test_drafts_get_longer_while_they_are_right_and_stop_when_they_are_wrong():
    drafter = Drafter(TextIndex([1]), costs_of(0.03))
    drafter._end_length = 3
    first = drafter.best_count(7)
    guess_and_draw(drafter, is_right=True, times=30)
    assert first < drafter.best_count(7) == 7
    guess_and_draw(drafter, is_right=False, times=60)
    assert drafter.best_count(7) == 0
    drafter._end_length = 2  # what is true of one length says nothing of another
    assert drafter.best_count(7) == first


def test_one_step_that_was_held_up_does_not_decide():
    costs = costs_of(0.03)
    drafter = Drafter(TextIndex([1]), costs)
    guess_and_draw(drafter, is_right=True, times=30)
    costs.note_pass(drafter.best_count(7), 1000.0)
    assert drafter.best_count(7) > 0
    costs.note_pass(0, 1000.0)
    for _ in range(10):
        costs.note_pass(0, 1.0)
    assert costs._plain_seconds < 1.5


@pytest.mark.parametrize("row", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("right", [0.0, 0.3, 1.0])
def test_whatever_a_row_costs_and_however_often_guesses_are_right_little_is_lost(
    monkeypatch, row, right
):
    costs = PassCosts()
    luck = np.random.default_rng(1)
    own = 0.005
    # What a draft takes, from one look at the clock to the next.
    now = itertools.count(step=own)
    monkeypatch.setattr(speculation_module, "clock", lambda: next(now))
    # Of two tokens, so that there is always a guess; the drafter does not see how they
    # are drawn.
    drafter = Drafter(TextIndex([1, 2] * 20), costs)
    costs.note_prompt(40, 40 * row)
    seconds = 0.0
    plain_seconds = 0.0
    for _ in range(4000):
        plain_seconds += 1.0
        wanted = drafter._expected[0] if drafter._expected else 1
        if drafter.observe(wanted if luck.random() < right else 3 - wanted) is not None:
            continue
        seconds += own * (costs.credit > 0.0)
        count = len(drafter.draft(7))
        drafter.note_rows(np.zeros((1 + count, 2), np.float32))
        costs.note_pass(count, 1.0 + row * count)
        seconds += 1.0 + row * count
    assert plain_seconds / seconds > 0.97
    if right == 1.0:
        assert plain_seconds / seconds > 0.97 * 8 / (1 + 7 * row)


def test_a_guess_that_was_not_drafted_still_teaches():
    drafter = Drafter(TextIndex([1, 2, 3, 1, 2]), costs_of(0.03))
    before = drafter._acceptance[2]
    assert drafter.draft(0) == []
    assert drafter.observe(3) is None
    assert drafter._acceptance[2] > before


# A smaller model drafts.


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of the same vocabulary that knows nothing of the first one."""
    directory = tmp_path_factory.mktemp("other")
    return load_model(write_meta_directory(directory, BYTES_VOCAB, bfloat16, seed=2))


@SETTINGS
def test_an_answer_with_a_draft_model_is_the_plain_one_step_by_step(
    bare, other, eager, sampling
):
    _, stats = both(bare, 256, PROMPT, 60, sampling, draft_model=other)
    assert stats.drafted_tokens > stats.accepted_tokens
    # A model that drafts for itself is always right, also where tokens are drawn: the
    # draft takes the random numbers of the answer.
    _, stats = both(bare, 256, PROMPT, 60, sampling, draft_model=bare)
    assert stats.accepted_tokens == stats.drafted_tokens == 59 - 8  # in 8 steps


def test_a_second_prompt_runs_what_is_new_in_it_alone(bare, other, eager, monkeypatch):
    engine = InferenceEngine(bare, 256, draft_model=other)
    answer = [step.token_id for step in engine.generate(PROMPT, 10, GREEDY)]
    lengths: list[int] = []
    run = BlockPool.run

    def counted(pool: BlockPool, parts: list[Part]) -> Any:
        if pool.model is other:
            lengths.append(len(parts[0].ids))
        return run(pool, parts)

    monkeypatch.setattr(BlockPool, "run", counted)
    next(engine.generate([*PROMPT, *answer[:8], 7, 8, 9], 10))
    assert 3 <= lengths[0] <= 4


def test_beyond_the_context_of_the_draft_model_there_are_no_drafts(bare, eager):
    args = replace(bare.args, max_context_length=len(PROMPT) + 20)
    drafter = replace(bare, args=args, transformer=LlamaTransformer(args, bare.tensors))
    _, stats = both(bare, 256, PROMPT, 60, GREEDY, draft_model=drafter)
    assert 14 <= stats.accepted_tokens == stats.drafted_tokens <= 20


def test_a_draft_model_that_has_no_numbers_changes_nothing(
    bare, other, eager, monkeypatch
):
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
def test_an_interrupt_of_the_draft_model_loses_nothing(
    bare, other, eager, monkeypatch, stride
):
    engine = InferenceEngine(bare, 256, draft_model=other)
    expected = [step.token_id for step in engine.generate(PROMPT, 30, GREEDY)]
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
                list(engine.generate(PROMPT[stop % 3 :], 30, GREEDY))
        assert [step.token_id for step in engine.generate(PROMPT, 30, GREEDY)] == expected


def test_another_vocabulary_is_refused(bare, model, tmp_path):
    small = load_model(write_meta_directory(tmp_path / "small", CONFIGS[0], bfloat16))
    with pytest.raises(
        ModelError, match=r"vocabulary: expected 512 tokens, as in .*, got 131"
    ):
        InferenceEngine(bare, 64, draft_model=small)
    two = load_model(
        write_meta_directory(tmp_path / "two", BYTES_VOCAB, bfloat16, tokenizer=True)
    )
    InferenceEngine(model, 64, draft_model=two)  # the twin that is used
    two.tokenizer._token_bytes = [*two.tokenizer._token_bytes]
    two.tokenizer._token_bytes[77] = b"other"
    with pytest.raises(ModelError, match=r"two: vocabulary: .* got another token 77"):
        InferenceEngine(model, 64, draft_model=two)


def test_rows_of_padding_are_neither_drafted_nor_run(model, eager):
    model = DraftModel(
        model, 64, replace(model, args=replace(model.args, vocab_size=300))
    )
    # The answering model may have tokens that the drafting one lacks, and a bias for
    # them.
    bias = {299: 2.0, 10**6: -100.0}
    sampler = Sampler(
        SamplingArgs(temperature=5.0, top_k=0, top_p=1.0, seed=2, logit_bias=bias)
    )
    model.begin([1, 2, 3], sampler)
    lengths = set()
    for _ in range(20):
        found = model.match()
        tokens = model.guess(found[1], 4)
        lengths.add(len(tokens))
        assert all(token < 300 for token in tokens)
        model.append(int(sampler.fork(300).sample(np.ones(300, np.float32), 0)))
        sampler._random.random()
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
    for costs, credit in (
        (PassCosts(), 0.1),
        (PassCosts(speculation_module.MODEL_STAKE), 0.5),
    ):
        costs.note_pass(0, 10.0)
        assert costs.credit == pytest.approx(credit)
