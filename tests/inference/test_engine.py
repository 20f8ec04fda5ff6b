import os
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.inference import (
    ContextFullError,
    InferenceEngine,
    InferenceError,
    Message,
    NumericError,
    PromptError,
    Sampler,
    SamplingArgs,
    Step,
)
from src.inference import engine as engine_module
from src.inference.blocks import BlockPool, Part
from src.model import (
    InferenceContext,
    ModelError,
    NotEnoughMemoryError,
    TokenIdError,
    load_model,
)
from tests.model.tiny import BYTES_VOCAB, token_ids, write_meta_directory
from tests.support.clock import Clock
from tools.runs import recorded

GREEDY = SamplingArgs(temperature=0.0)
EOT = 265


@pytest.fixture
def scripted(model) -> "Scripted":
    return Scripted(model)


class Scripted:
    """Stands in for the transformer: after n tokens in all, the largest logit is
    script[n].
    """

    def __init__(self, model: Any) -> None:
        self.script: dict[int, int] = {}
        self.runs: list[tuple[int, list[int]]] = []
        self._model = model

    def forward(
        self, context: Any, tokens: list[int], start_pos: int, all_positions: bool = False
    ) -> ml.Tensor:
        context.begin(start_pos, len(tokens))
        self.runs.append((start_pos, list(tokens)))
        context.length = start_pos + len(tokens)
        logits = np.zeros((1, 512), np.float32)
        logits[0, self.script.get(context.length, ord("?"))] = 9.0
        return ml.Tensor.from_numpy(logits)

    def engine(
        self, sequence_length: int, answer: bytes | list[int], prompt: int
    ) -> InferenceEngine:
        """Returns an engine that gives the answer after a prompt of so many tokens."""
        self.script = {prompt + at: token for at, token in enumerate(answer)}
        return InferenceEngine(replace(self._model, transformer=self), sequence_length)


def texts(steps: Iterable[Step]) -> list[str]:
    return [step.text for step in steps]


def ids(steps: Iterable[Step]) -> list[int]:
    return [step.token_id for step in steps]


def answer(
    engine: InferenceEngine, prompt: list[int], count: int = 8, **more: Any
) -> list[int]:
    return ids(engine.generate(prompt, count, **{"sampling": GREEDY, **more}))


def test_an_answer_is_what_running_the_whole_sequence_again_and_again_gives(model):
    prompt = token_ids(BYTES_VOCAB, 20)
    sequence = list(prompt)
    for token in answer(InferenceEngine(model, 64), prompt, 12):
        context = InferenceContext(model.args, 64)
        logits = model.transformer.forward(context, sequence).numpy()[0]
        assert int(np.argmax(logits)) == token
        sequence.append(token)


def test_only_the_last_step_says_why_it_stopped_and_what_it_took(scripted):
    engine = scripted.engine(64, [*b"Hi!", EOT], 5)
    steps = list(engine.generate([*b"12345"], sampling=replace(GREEDY, seed=3)))
    stats = steps[-1].stats
    assert texts(steps) == ["H", "i", "!", ""]
    assert [step.stop_reason for step in steps] == [None, None, None, "eot"]
    assert [step.stats for step in steps] == [None, None, None, engine.last_stats]
    assert (stats.prompt_tokens, stats.cached_tokens, stats.new_tokens, stats.seed) == (
        5,
        0,
        4,
        3,
    )
    assert min(stats.prefill_seconds, stats.decode_seconds) > 0


@pytest.mark.parametrize("end", [257, 264, 265], ids=["end_of_text", "eom", "eot"])
def test_each_end_token_ends_the_answer_and_is_not_run_and_others_show_their_name(
    scripted, end
):
    engine = scripted.engine(64, [ord("a"), 262, end, *b"never"], 3)
    steps = list(engine.generate([*b"123"]))
    assert [(step.token_id, step.text, step.stop_reason) for step in steps] == [
        (ord("a"), "a", None),
        (262, "<|start_header_id|>", None),
        (end, "", "eot"),
    ]
    assert engine.cached_ids == (*b"123a", 262)


def test_it_stops_after_the_most_tokens_asked_for_unless_the_last_one_is_an_end(scripted):
    engine = scripted.engine(64, b"abcdef", 3)
    steps = list(engine.generate([*b"123"], 4))
    assert (texts(steps), steps[-1].stop_reason) == ([*"abcd"], "max tokens")
    assert scripted.runs == [(0, [*b"123"]), (3, [*b"a"]), (4, [*b"b"]), (5, [*b"c"])]
    engine = scripted.engine(64, [*b"ab", EOT], 3)
    assert list(engine.generate([*b"123"], 3))[-1].stop_reason == "eot"


def test_it_stops_exactly_at_the_end_of_the_context_that_a_prompt_may_fill_but_for_one(
    scripted,
):
    engine = scripted.engine(8, b"abcdef", 5)
    steps = list(engine.generate([*b"12345"]))
    assert (texts(steps), steps[-1].stop_reason) == ([*"abc"], "context full")
    assert engine.context.length == 7  # the last token fills the context and is not run
    assert list(engine.generate([*b"12345"], 3))[-1].stop_reason == "max tokens"
    (step,) = scripted.engine(8, b"ab", 7).generate([*b"1234567"])
    assert (step.text, step.stop_reason) == ("a", "context full")


@pytest.mark.parametrize(
    ("prompt", "more", "kind", "error"),
    [
        *(
            ([1] * n, {}, ContextFullError, f"{n} tokens >= 32 positions")
            for n in (32, 33, 320)
        ),
        *(
            ([*prompt, bad], {}, TokenIdError, "tokens")
            for prompt, bad in (
                ([], -1),
                ([], 512),
                ([1, 2], 513),
                ([], 2**40),
                ([], -(2**31)),
            )
        ),
        ([], {}, PromptError, "at least one token: got none"),
        *(
            (
                text,
                {},
                PromptError,
                r"prompt_ids must be token ids, such as .*encode\(text",
            )
            for text in ("hi", b"hi", "")
        ),
        *(
            (
                [1],
                {"max_new_tokens": bad},
                PromptError,
                "tokens must be a whole number >= 1",
            )
            for bad in (0, -1, 1.5, True, "5")
        ),
        *(
            (
                [1],
                {"candidates": bad},
                PromptError,
                "candidates must be a whole number >= 0",
            )
            for bad in (-1, True, 1.0)
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_has_no_answer_is_refused_at_once_and_changes_nothing(
    model, prompt, more, kind, error
):
    engine = InferenceEngine(model, 32)
    first = answer(engine, [1, 2, 3])
    cached = engine.cached_ids
    with pytest.raises(kind, match=error):
        engine.generate(prompt, **more)
    assert engine.cached_ids == cached
    assert answer(engine, [1, 2, 3]) == first


WRONG_IDS = [
    5,
    None,
    1.5,
    [1.5],
    [None],
    ["a"],
    [[1, 2]],
    [[1], [2, 3]],
    [True],
    {1: 2},
    {1},
    iter([1]),
    bytearray(b"a"),
    object,
    np.array(5),
    np.ones(2),
    np.ones((1, 2), int),
    np.array(["a"]),
    ml.ones(2),
    ml.ones(2, 2, dtype="int32"),
    ml.quantize(ml.ones(64), ml.nf4),
    [2**70],
]
RIGHT_IDS = [
    [1, 2],
    (1, 2),
    range(1, 3),
    np.array([1, 2]),
    np.array([1, 2], np.uint8),
    [np.int64(1), 2],
    ml.tensor([1, 2], dtype="int32"),
    ml.tensor([1, 2], dtype="int64"),
]


@pytest.mark.parametrize("wrong", WRONG_IDS, ids=lambda value: type(value).__name__)
def test_ids_of_another_type_are_refused_in_one_line_and_change_nothing(model, wrong):
    engine = InferenceEngine(model, 32)
    expected = answer(engine, [1, 2, 3])
    calls = {
        "prompt_ids": lambda: engine.generate(wrong),
        "answer_ids": lambda: engine.generate([1], answer_ids=wrong),
        "forced_ids": lambda: engine.generate([1], forced_ids=wrong),
        "tokens": lambda: model.transformer.forward(
            InferenceContext(model.args, 8), wrong
        ),
    }
    for name, call in calls.items():
        label = "tokens" if wrong is WRONG_IDS[-1] else name
        text = rf"^\[(generate|forward)\] {label}.* got .+$"
        with pytest.raises(TokenIdError, match=text) as error:
            call()
        assert "\n" not in str(error.value)
    assert answer(engine, [1, 2, 3]) == expected


@pytest.mark.parametrize("right", RIGHT_IDS, ids=lambda value: type(value).__name__)
def test_ids_are_any_sequence_of_whole_numbers(model, right):
    engine = InferenceEngine(model, 32)
    expected = answer(engine, [1, 2])
    assert answer(engine, right) == expected
    steps = list(engine.generate([1], 3, forced_ids=right))
    assert [step.token_id for step in steps][:2] == [1, 2]
    assert list(engine.generate([3], 1, answer_ids=right))[-1].stats.prompt_tokens == 3
    logits = model.transformer.forward(InferenceContext(model.args, 8), right)
    assert logits.shape == (1, model.args.vocab_size)


def test_end_ids_and_stops_are_sequences(model):
    engine = InferenceEngine(model, 32)
    for ends in ({1}, [1], (), frozenset((1, 2)), range(2), {1: None}):
        assert list(engine.generate([1], 1, end_ids=ends))
    for wrong in (5, None, "1", ["1"], [1.5], [None]):
        with pytest.raises(
            (PromptError, TokenIdError), match=r"^\[generate\] end_ids must be "
        ):
            engine.generate([1], end_ids=wrong)
    for stop in (5, None, 1.5):
        with pytest.raises(
            PromptError, match=r"^\[generate\] stop must be a sequence: got "
        ):
            engine.generate([1], stop=stop)


@pytest.mark.parametrize("length", [0, -5, 10**9])
def test_a_senseless_context_is_refused(model, length):
    with pytest.raises(ModelError):
        InferenceEngine(model, length)


def test_the_context_is_4096_by_default_or_the_models_longest(model):
    assert model.args.max_context_length == 131072
    assert InferenceEngine(model).sequence_length == 4096
    short = SimpleNamespace(args=replace(model.args, max_context_length=100))
    assert InferenceEngine(short).sequence_length == 100


def test_stop_strings_end_the_answer_and_are_not_part_of_it(scripted):
    engine = scripted.engine(64, b"Hello\nUser: hi", 2)
    assert "".join(texts(engine.generate([*b"12"], stop="l"))) == "He"
    steps = list(engine.generate([*b"12"], stop=["\nUser:", "##"]))
    assert (texts(steps), steps[-1].stop_reason) == ([*"Hello", *[""] * 6], "stop string")


def test_text_held_back_comes_with_the_last_step_whatever_ends_it(scripted):
    for ending, limit, reason in (([EOT], None, "eot"), (b"..", 4, "max tokens")):
        engine = scripted.engine(64, [*b"ab##", *ending], 2)
        steps = list(engine.generate([*b"12"], limit, stop=["###"]))
        assert ("".join(texts(steps)), steps[-1].stop_reason) == ("ab##", reason)


def test_an_unfinished_character_at_the_end_is_shown_as_such(scripted):
    engine = scripted.engine(64, [*"a🦙é".encode(), EOT], 2)
    assert [t for t in texts(engine.generate([*b"12"])) if t] == ["a", "🦙", "é"]
    for ending, limit in (([EOT], None), (b"", 4)):
        engine = scripted.engine(64, [*b"a", *"🦙".encode()[:3], *ending], 2)
        found = texts(engine.generate([*b"12"], limit))
        assert "".join(found) == "a\N{REPLACEMENT CHARACTER}"


def test_a_long_prompt_is_read_in_chunks_with_progress(scripted, monkeypatch):
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 4)
    engine = scripted.engine(64, [EOT], 10)
    seen: list[tuple[int, int]] = []
    list(engine.generate([*b"0123456789"], progress=lambda *counts: seen.append(counts)))
    assert seen == [(0, 10), (4, 10), (8, 10), (10, 10)]
    assert [len(tokens) for _, tokens in scripted.runs] == [4, 4, 2]
    seen.clear()
    scripted.script = {12: EOT}
    list(
        engine.generate([*b"0123456xyz+-"], progress=lambda *counts: seen.append(counts))
    )
    assert seen == [(7, 12), (11, 12), (12, 12)]


def test_who_watches_a_prompt_hears_of_it_about_once_a_second(scripted, monkeypatch):
    # what each chunk takes
    clock = Clock(monkeypatch)
    seconds = iter((0.1, 0.99, 1.99, 1.0))
    monkeypatch.setattr(engine_module, "WATCHED_CHUNK", 2)
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 8)
    run = BlockPool.run

    def timed(pool: BlockPool, parts: list[Part]) -> Any:
        clock.advance(next(seconds))
        return run(pool, parts)

    monkeypatch.setattr(BlockPool, "run", timed)
    prompt = [*b"0123456789abcdefghijkl"]
    engine = scripted.engine(64, [EOT], len(prompt))
    list(engine.generate(prompt, progress=lambda _done, _total: None))
    # The least at first; the most, because that was quick, and again; half, because that
    # took 2 s.
    assert [len(tokens) for _, tokens in scripted.runs] == [2, 8, 8, 4]
    # While a trace is on, the chunks are those of nobody who watches.
    monkeypatch.setattr(engine_module, "is_on", lambda: True)
    scripted.runs.clear()
    seconds = iter((1.0,) * 3)
    engine = scripted.engine(64, [EOT], len(prompt))
    list(engine.generate(prompt, progress=lambda _done, _total: None))
    assert [len(tokens) for _, tokens in scripted.runs] == [8, 8, 6]


def test_what_a_trace_takes_for_itself_is_not_counted(scripted, monkeypatch):
    engine = scripted.engine(64, [*b"ab", EOT], 3)
    seconds = 0.5
    clock = Clock(monkeypatch)
    args = engine.model.args

    def write(event):
        clock.advance(seconds * (event.stage in (2, 21)))

    with recorded(args, write):
        [*_, last] = engine.generate([*b"123"])
    assert clock.now > 4 * seconds
    assert last.stats.prefill_seconds + last.stats.decode_seconds < seconds


@pytest.mark.parametrize(
    ("said", "prompt", "cached"),
    [(b"ab", b"123ab+45", 5), (b"", b"123", 2)],
    ids=["more", "same"],
)
def test_only_what_is_new_of_a_prompt_is_run_or_its_last_token(
    scripted, said, prompt, cached
):
    engine = scripted.engine(64, [*said, EOT], 3)
    list(engine.generate([*b"123"]))
    scripted.runs.clear()
    scripted.script = {len(prompt): EOT}
    steps = list(engine.generate([*prompt]))
    assert steps[-1].stats.cached_tokens == cached
    assert scripted.runs == [(cached, [*prompt[cached:]])]


def test_only_the_newest_iterator_of_an_engine_goes_on_and_reset_forgets_the_cache(model):
    engine = InferenceEngine(model, 64)
    old = engine.generate([1, 2, 3], sampling=GREEDY)
    next(old)
    found = answer(engine, [4, 5, 6], 5)
    with pytest.raises(InferenceError, match="ended by a newer call"):
        next(old)
    engine.reset()
    assert (engine.cached_ids, engine.context.length) == ((), 0)
    steps = list(engine.generate([4, 5, 6], 5, sampling=GREEDY))
    assert found == ids(steps) == answer(InferenceEngine(model, 64), [4, 5, 6], 5)
    assert steps[-1].stats.cached_tokens == 0


def test_the_same_seed_gives_the_same_answer_and_is_reported(model):
    sampling = SamplingArgs(temperature=1.0, top_k=0, top_p=1.0)
    steps = list(InferenceEngine(model, 64).generate([1, 2], 20, sampling))
    again = replace(sampling, seed=steps[-1].stats.seed)
    assert answer(InferenceEngine(model, 64), [1, 2], 20, sampling=again) == ids(steps)


def test_the_repetition_penalty_knows_prompt_and_answer(model):
    penalised = SamplingArgs(temperature=0.0, repeat_penalty=1e6)
    found = answer(InferenceEngine(model, 64), [1, 2, 3], 40, sampling=penalised)
    assert len({*found, 1, 2, 3}) == len(found) + 3


def test_without_a_tokenizer_ids_are_generated_without_text_or_end(model, bare):
    assert bare.tokenizer is None
    steps = list(InferenceEngine(bare, 64).generate([1, 2, 3], 8, sampling=GREEDY))
    assert (texts(steps), steps[-1].stop_reason) == ([""] * 8, "max tokens")
    with pytest.raises(PromptError, match="model must have a tokenizer"):
        InferenceEngine(bare, 64).chat([Message("user", "Hi")])
    with pytest.raises(PromptError, match="stop needs a tokenizer"):
        InferenceEngine(bare, 64).generate([1], stop=["x"])


def test_not_a_number_in_the_weights_is_an_error_and_the_cache_is_forgotten(
    tmp_path, monkeypatch
):
    model = load_model(write_meta_directory(tmp_path, BYTES_VOCAB, tokenizer=True))
    engine = InferenceEngine(model, 64)
    good = answer(engine, [1, 2, 3])
    norm = ml.full((BYTES_VOCAB.dim,), float("nan"))
    with monkeypatch.context() as patch:
        patch.setattr(model.transformer.layers[0].ffn_norm, "weight", norm)
        with pytest.raises(NumericError, match="got nan for token 0 at position 4"):
            answer(engine, [1, 2, 3, 4])
    assert engine.cached_ids == ()
    assert answer(engine, [1, 2, 3]) == good


def test_weights_rewritten_are_noticed_before_an_answer_and_before_its_last_step(
    tmp_path,
):
    model = load_model(write_meta_directory(tmp_path, BYTES_VOCAB, tokenizer=True))
    engine = InferenceEngine(model, 64)
    found = []
    steps = engine.generate([1, 2, 3], 5, sampling=GREEDY)
    found.append(next(steps))
    os.utime(tmp_path / "consolidated.00.pth", ns=(1, 1))
    with pytest.raises(CheckpointError, match="rewritten while in use"):
        found.extend(steps)
    assert [step.stop_reason for step in found] == [None] * 4
    assert (engine.cached_ids, engine.context.length) == ((), 0)
    with pytest.raises(CheckpointError):
        engine.generate([1, 2, 3])


def test_memory_that_is_refused_is_an_error_of_the_package_and_changes_nothing(
    model, monkeypatch
):
    engine = InferenceEngine(model, 64)
    expected = answer(engine, [1, 2, 3], 4)

    def refuse(*_arguments: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "observe", refuse)
        with pytest.raises(
            NotEnoughMemoryError, match=r"\[generate\] memory: the system"
        ):
            answer(engine, [1, 2, 9], 4)
    assert answer(engine, [1, 2, 3], 4) == expected


def test_an_answer_goes_on_where_it_was_stopped(model):
    messages = [Message("user", "Hello")]
    engine = InferenceEngine(model, 200)
    whole = list(engine.chat(messages, 12, GREEDY))
    for count in range(12):
        begun = ids(whole[:count])
        rest = list(engine.chat(messages, 12 - count, GREEDY, answer_ids=begun))
        assert begun + ids(rest) == ids(whole)
        assert "".join(texts(rest)) == "".join(texts(whole))


def test_what_was_held_back_comes_when_the_answer_goes_on(scripted):
    answer = "é🦙 END".encode()
    for count in range(1, len(answer)):
        engine = scripted.engine(64, [*answer, EOT], 3)
        steps = list(
            engine.generate(
                [*b"123"], stop=("END", "🦙 EX"), answer_ids=[*answer[:count]]
            )
        )
        assert ("".join(texts(steps)), steps[-1].stop_reason) == ("é🦙 ", "stop string")


def test_tokens_of_an_answer_that_goes_on_count_as_prompt(scripted):
    engine = scripted.engine(8, b"abcdefgh", 3)
    steps = list(engine.generate([*b"123"], answer_ids=[*b"abc"]))
    assert (texts(steps), steps[-1].stop_reason) == (["abcd", "e"], "context full")
    assert steps[-1].stats.prompt_tokens == 6
    with pytest.raises(ContextFullError, match="8 tokens >= 8 positions"):
        engine.generate([*b"123"], answer_ids=[*b"abcde"])
    with pytest.raises(TokenIdError):
        engine.generate([*b"123"], answer_ids=[-1])
