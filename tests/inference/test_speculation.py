"""Drafts change how long an answer takes, and nothing else."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from src import trace
from src.inference import InferenceEngine, NumericError, SamplingArgs, Step
from src.inference import speculation as speculation_module
from src.inference.speculation import Drafter, DraftLength, PassCosts, TextIndex
from src.ml import bfloat16
from src.model import Model, load_model
from src.trace.tracer import Tracer
from tests.inference.drafts import costs_of, draft_always
from tests.model.tiny import BYTES_VOCAB, token_ids, write_meta_directory

GREEDY = SamplingArgs(temperature=0.0)
SAMPLED = SamplingArgs(temperature=0.5, top_k=8, seed=1)
PENALISED = SamplingArgs(temperature=0.4, top_k=0, top_p=0.8, repeat_penalty=1.1, seed=6)
SETTINGS = pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
# One phrase again and again, as texts have them.
PROMPT = token_ids(BYTES_VOCAB, 9, seed=5) * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("model")
    return load_model(write_meta_directory(directory, BYTES_VOCAB, bfloat16, tokenizer=True))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The same model without a tokenizer: no token ends an answer."""
    return load_model(write_meta_directory(tmp_path_factory.mktemp("bare"), BYTES_VOCAB, bfloat16))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts as many tokens as allowed, whether it pays or not."""
    draft_always(monkeypatch)


@pytest.fixture
def prophet(monkeypatch: pytest.MonkeyPatch) -> "Prophet":
    return Prophet(monkeypatch)


class Prophet:
    """Drafts what a plain run gave, with one wrong token at chosen places."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def foretell(self, answer: Sequence[int], length: int, wrong: set[int]) -> None:
        told = [token ^ 1 if at in wrong else token for at, token in enumerate(answer)]

        def draft(drafter: Any, most: int, *_: object) -> list[int]:
            seen = len(drafter._guesser._ids) - len(PROMPT)
            tokens = told[seen : seen + min(most, length)]
            drafter._guess = speculation_module._Guess(2, tokens) if tokens else None
            return tokens

        self._monkeypatch.setattr(Drafter, "draft", draft)


def recorded(engine: InferenceEngine, steps: Iterator[Step]) -> list[Any]:
    """Returns what a caller can see at each step, and the state that the engine is in."""
    seen = []
    for step in steps:
        counts = None
        if step.stats is not None:
            counts = (step.stats.prompt_tokens, step.stats.cached_tokens, step.stats.new_tokens)
        state = (engine.cached_ids, engine.context.length)
        seen.append((step.token_id, step.text, step.stop_reason, counts, state))
    return seen


def both(model: Model, length: int, *arguments: Any, **more: Any) -> tuple[list[Any], Any]:
    """Checks that an answer with drafts is the plain one; returns it and the stats."""
    plain = InferenceEngine(model, length, speculation=False)
    drafting = InferenceEngine(model, length)
    expected = recorded(plain, plain.generate(*arguments, **more))
    assert recorded(drafting, drafting.generate(*arguments, **more)) == expected
    return expected, drafting.last_stats


@SETTINGS
def test_an_answer_with_drafts_is_the_plain_one_step_by_step(
    bare: Model, eager: None, sampling: SamplingArgs
) -> None:
    seen, stats = both(bare, 256, PROMPT, 100, sampling)
    assert len(seen) == 100
    assert stats.drafted_tokens > stats.accepted_tokens


@SETTINGS
@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize("wrong", [set(), {2}, {5, 6, 20}], ids=str)
def test_drafts_right_and_wrong_at_any_place_change_nothing(
    bare: Model, prophet: Prophet, sampling: SamplingArgs, length: int, wrong: set[int]
) -> None:
    plain = InferenceEngine(bare, 128, speculation=False)
    answer = [step.token_id for step in plain.generate(PROMPT, 32, sampling)]
    prophet.foretell(answer, length, wrong)
    seen, stats = both(bare, 128, PROMPT, 32, sampling)
    assert [step[0] for step in seen] == answer
    if not wrong:
        # The first token comes with the prompt; each step gives its draft and one more.
        assert stats.accepted_tokens == stats.drafted_tokens == 31 - (31 + length) // (length + 1)


def test_the_context_is_filled_to_the_same_position(bare: Model, prophet: Prophet) -> None:
    length = len(PROMPT) + 20
    plain = InferenceEngine(bare, length, speculation=False)
    prophet.foretell([step.token_id for step in plain.generate(PROMPT, None, GREEDY)], 7, set())
    seen, _ = both(bare, length, PROMPT, None, GREEDY)
    assert seen[-1][2] == "context full"
    assert len(seen) == 20


@pytest.mark.parametrize("ending", ["stop string", "eot"])
@pytest.mark.parametrize("at", range(1, 9))
def test_an_answer_ends_at_the_same_token_within_a_draft(
    model: Model, prophet: Prophet, monkeypatch: pytest.MonkeyPatch, ending: str, at: int
) -> None:
    plain = InferenceEngine(model, 128, speculation=False)
    sampling = SamplingArgs(temperature=3.0, top_k=0, top_p=1.0, seed=3)
    steps = list(plain.generate(PROMPT, 30, sampling))
    answer = [step.token_id for step in steps]
    prophet.foretell(answer, 5, {8})
    more: dict[str, Any] = {}
    assert model.tokenizer is not None
    if ending == "stop string":
        more["stop"] = [steps[at].text or "never there"]
    else:
        monkeypatch.setattr(model.tokenizer, "stop_ids", frozenset({answer[at]}))
    seen, _ = both(model, 128, PROMPT, 30, sampling, **more)
    is_shown = ending == "eot" or steps[at].text
    assert seen[-1][2] == (ending if is_shown else "max tokens")


@pytest.mark.parametrize("steps", range(1, 11))
def test_an_answer_left_within_a_draft_leaves_the_state_of_a_plain_one(
    model: Model, prophet: Prophet, steps: int
) -> None:
    plain = InferenceEngine(model, 128, speculation=False)
    prophet.foretell([step.token_id for step in plain.generate(PROMPT, 30, GREEDY)], 5, {7})
    plain, drafting = InferenceEngine(model, 128, speculation=False), InferenceEngine(model, 128)
    for engine in (plain, drafting):
        iterator: Any = engine.generate(PROMPT, 30, GREEDY)
        for _ in range(steps):
            next(iterator)
        iterator.close()
    assert drafting.cached_ids == plain.cached_ids
    assert drafting.context.length == plain.context.length == len(plain.cached_ids)
    following = [*plain.cached_ids, 1, 2, 3]
    results = [
        recorded(engine, engine.generate(following, 10, GREEDY)) for engine in (plain, drafting)
    ]
    assert results[0] == results[1]


def test_logits_that_are_no_numbers_are_an_error_at_the_same_token(
    model: Model, prophet: Prophet, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = InferenceEngine(model, 128, speculation=False)
    prophet.foretell([step.token_id for step in plain.generate(PROMPT, 30, GREEDY)], 5, set())
    forward, bad = model.transformer.forward, len(PROMPT) + 8

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
        assert engine.last_stats is not None
        assert engine.last_stats.new_tokens == 8
        assert engine.cached_ids == ()


def test_a_trace_sees_one_token_per_step(model: Model, prophet: Prophet) -> None:
    engine = InferenceEngine(model, 256)
    counts: list[int] = []
    forward = model.transformer.forward

    def counting(context: Any, tokens: Any, *more: Any, **named: Any) -> Any:
        counts.append(len(tokens))
        return forward(context, tokens, *more, **named)

    plain = InferenceEngine(model, 256, speculation=False)
    expected = [step.token_id for step in plain.generate(PROMPT, 40, GREEDY)]
    prophet.foretell(expected, 5, set())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.transformer, "forward", counting)
        iterator: Any = engine.generate(PROMPT, 40, GREEDY)
        steps = [next(iterator) for _ in range(13)]
        assert counts == [len(PROMPT), 6, 6]
        counts.clear()
        trace.start(Tracer(model.args.sizes, lambda event: None))
        try:
            steps += [next(iterator) for _ in range(10)]
            assert counts == [1] * 10
        finally:
            trace.stop()
        steps += iterator
    assert [step.token_id for step in steps] == expected


def test_without_speculation_nothing_is_drafted(bare: Model, eager: None) -> None:
    engine = InferenceEngine(bare, 256, speculation=False)
    list(engine.generate(PROMPT, 40, GREEDY))
    assert engine.last_stats is not None
    assert engine.last_stats.drafted_tokens == engine.last_stats.accepted_tokens == 0


def test_repetition_is_found_and_saves_steps(bare: Model, eager: None) -> None:
    engine = InferenceEngine(bare, 512)
    list(engine.generate(PROMPT, 300, GREEDY))
    stats = engine.last_stats
    assert stats is not None
    assert 0 < stats.accepted_tokens <= stats.drafted_tokens


def test_the_longest_end_that_stood_earlier_is_found_where_it_stood_last() -> None:
    text = TextIndex([1, 2, 3, 9, 2, 3, 8, 1, 2, 3])
    assert text.match() == (3, 3)  # 1 2 3 was followed by the 9
    text.append(7)
    assert text.match() is None
    for token in (2, 3):
        text.append(token)
    assert text.match() == (2, 10)  # 2 3 stood last before the 7


def test_a_text_that_is_indexed_at_once_or_by_tokens_gives_the_same() -> None:
    ids = [int(n) for n in np.random.default_rng(3).integers(0, 4, 300)]
    growing = TextIndex(ids[:1])
    for end in range(1, len(ids)):
        assert growing.match() == TextIndex(ids[:end]).match()
        growing.append(ids[end])


@pytest.mark.parametrize("ids", [[], [1], [1, 1], [1, 2, 3]])
def test_a_text_too_short_to_repeat_itself_has_no_match(ids: list[int]) -> None:
    text = TextIndex(ids)
    assert text.match() is None
    text.append(5)


def test_a_copy_that_reaches_the_end_goes_on_with_itself() -> None:
    text = TextIndex([1, 2, 3, 4, 5])
    assert text.guess(2, 2) == [3, 4]
    assert text.guess(3, 7) == [4, 5, 4, 5, 4, 5, 4]


def test_of_a_very_long_text_the_end_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation_module, "_LONGEST_TEXT", 6)
    assert TextIndex([5, 6, 1, 2, 3, 4, 5, 6]).match() is None
    monkeypatch.undo()
    assert TextIndex([5, 6, 1, 2, 3, 4, 5, 6]).match() == (2, 2)


def test_ids_beyond_the_characters_of_python_may_match_wrongly_and_are_copied_rightly() -> None:
    beyond = sys.maxunicode + 1
    text = TextIndex([0xD800, beyond + 7, 9, 0xD800, 7])
    assert text.match() == (2, 2)
    assert text.guess(1, 2) == [beyond + 7, 9]


def test_drafts_get_longer_while_they_are_right_and_stop_when_they_are_wrong() -> None:
    length = DraftLength(costs_of(0.03))
    first = length.best(3, 7)
    for _ in range(30):
        length.note_guess(3, True)
    assert first < length.best(3, 7) == 7
    for _ in range(60):
        length.note_guess(3, False)
    assert length.best(3, 7) == 0
    assert length.best(2, 7) == first  # what is true of one length says nothing of another


def test_what_a_prompt_took_says_what_a_row_takes() -> None:
    for row, drafts in ((0.02, True), (0.9, False)):
        costs = PassCosts()
        costs.note_prompt(100, 100 * row)
        for _ in range(1000):
            costs.note_plain(1.0)
        assert costs.ratio(4) == pytest.approx(1 + 3 * row)
        assert (DraftLength(costs).best(4, 7) > 0) is drafts


def test_one_step_that_was_held_up_does_not_decide() -> None:
    costs = costs_of(0.03)
    length = DraftLength(costs)
    for _ in range(30):
        length.note_guess(4, True)
    before = length.best(4, 7)
    costs.note_check(1 + before, 1000.0)
    costs.credit = 8.0
    assert length.best(4, 7) > 0
    costs.note_plain(1000.0)
    for _ in range(10):
        costs.note_plain(1.0)
    assert costs._plain_seconds < 1.5


@pytest.mark.parametrize("row", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("right", [0.0, 0.3, 1.0])
def test_whatever_a_row_costs_and_however_often_guesses_are_right_little_is_lost(
    row: float, right: float
) -> None:
    costs, luck, own = PassCosts(), np.random.default_rng(1), 0.005
    # Of two tokens, so that there is always a guess; the drafter does not see how they are drawn.
    drafter = Drafter(TextIndex([1, 2] * 20), costs)
    costs.note_prompt(40, 40 * row)
    seconds, plain_seconds = 0.0, 0.0
    for _ in range(4000):
        plain_seconds += 1.0
        guess = drafter._guess
        wanted = guess.tokens[guess.confirmed] if guess else 1
        if drafter.observe(wanted if luck.random() < right else 3 - wanted) is not None:
            continue
        count = len(drafter.draft(7))
        taken = 1.0 + row * count
        drafter.seconds = own if drafter.seconds else 0.0
        seconds += taken + drafter.seconds
        drafter.note_step(np.zeros((1 + count, 2), np.float32), taken)
    assert plain_seconds / seconds > 0.97
    if right == 1.0:
        assert plain_seconds / seconds > 0.97 * 8 / (1 + 7 * row)


def test_a_guess_that_was_not_drafted_still_teaches() -> None:
    drafter = Drafter(TextIndex([1, 2, 3, 1, 2]), costs_of(0.03))
    before = drafter._length._acceptance[2]
    assert drafter.draft(0) == []
    assert drafter.observe(3) is None
    assert drafter._length._acceptance[2] > before


def test_rows_are_given_out_until_a_token_differs() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    for drawn, given in (([3, 1, 2, 9], [0, 1, 2, None]), ([3, 1, 9], [0, 1, None]), ([7], [None])):
        drafter = Drafter(TextIndex([1, 2, 3, 1, 2]), costs_of(0.0))
        drafted = drafter.draft(3)
        assert drafted == [3, 1, 2]
        drafter.note_step(rows, 1.0)
        for token, row in zip(drawn, given, strict=True):
            found = drafter.observe(token)
            if row is None:
                assert found is None
            else:
                np.testing.assert_array_equal(found, rows[1 + row])
