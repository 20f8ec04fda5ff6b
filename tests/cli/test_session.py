"""The history: what it holds after answers, refusals and interrupts."""

import itertools
import random
import signal
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest

from src.cli import chat
from src.cli.answer import INTERRUPTED, Settings
from src.cli.commands import run_command
from src.cli.console import Console, UsageError
from src.cli.session import Session, Turn
from src.inference import ContextFullError, InferenceEngine, Message
from src.model import load_model
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import ALPHABET, interrupt_after, press_ctrl_c_at, session_of


def test_an_answer_goes_to_standard_output_and_into_the_history(session, capsys):
    before = signal.getsignal(signal.SIGINT)
    session.ask("Hello")
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr() == (f"{ALPHABET}\n", "")
    assert session.turns == [Turn("Hello", ALPHABET)]
    ids = session.history_ids()
    cached = session.engine.cached_ids
    assert tuple(ids[: len(cached)]) == cached
    assert len(ids) == len(cached) + 1  # the end token is never run
    session.system = "short"
    assert session.messages(session.turns, "more") == [
        Message("system", "short"),
        Message("user", "Hello"),
        Message("assistant", ALPHABET),
        Message("user", "more"),
    ]


def test_regenerating_replaces_the_last_answer_also_if_it_is_interrupted(session):
    session.ask("Hello")
    session.settings = session.settings.changed("max_tokens", "3")
    session.regenerate()
    assert session.turns == [Turn("Hello", "abc")]
    session.settings = session.settings.changed("max_tokens", "none")
    with interrupt_after(4):
        session.regenerate()
    assert session.turns == [Turn("Hello", "abcd")]


def test_undoing_takes_the_last_turn_back_and_clearing_keeps_system_and_settings(session):
    session.system = "short"
    session.attached = "a text"
    settings = session.settings
    for question in ("one", "two"):
        session.ask(question)
    with interrupt_after(4):
        session.ask("three")
    assert (session.undo(), session.undo()) == ("three", "two")
    assert session.turns == [Turn("one", ALPHABET)]
    session.clear()
    assert (session.turns, session.attached) == ([], "")
    assert (session.system, session.settings) == ("short", settings)


def test_nothing_is_regenerated_undone_or_goes_on_at_first_or_in_another_chat(session):
    for do, nothing in (
        (session.regenerate, "expected a question to answer again"),
        (session.undo, "expected a question to remove"),
        (session.resume, "expected an answer that was stopped"),
    ):
        with pytest.raises(UsageError, match=nothing):
            do()
    session.settings = session.settings.changed("max_tokens", "3")
    session.ask("one")
    session.restore(None, [Turn("one", "abc")], session.settings)
    with pytest.raises(UsageError, match="expected an answer that was stopped"):
        session.resume()


@pytest.mark.parametrize("earlier", [None, "not answered yet"])
def test_a_message_that_is_rejected_is_no_turn(session, earlier):
    session.ask("one")
    turns = list(session.turns)
    session.unanswered = earlier
    session.attached = "a text"
    with pytest.raises(ContextFullError):
        session.ask_with_attached("x" * 300)
    assert (session.turns, session.unanswered, session.attached) == (
        turns,
        earlier,
        "a text",
    )
    session.ask_with_attached("two")
    assert session.turns[1:] == [Turn("a text\n\ntwo", ALPHABET)]
    assert (session.unanswered, session.attached) == (None, "")


def test_after_a_rejected_message_continue_and_undo_see_the_turn_before_it(session):
    session.settings = session.settings.changed("max_tokens", "3")
    session.ask("one")
    with pytest.raises(ContextFullError):
        session.ask("x" * 300)
    session.resume()
    assert session.turns == [Turn("one", ALPHABET[:6])]
    with pytest.raises(ContextFullError):
        session.ask("x" * 300)
    assert session.undo() == "one"
    assert session.turns == []


def test_an_interrupted_answer_stays_and_goes_on(session, capsys):
    session.ask("one")
    with interrupt_after(4):
        answer = session.ask("two")
    assert (answer.text, answer.stop_reason) == ("abcd", INTERRUPTED)
    assert session.turns == [Turn("one", ALPHABET), Turn("two", "abcd")]
    assert session.unanswered is None
    assert capsys.readouterr().out.endswith("\nabc\n")
    session.resume()
    assert session.turns == [Turn("one", ALPHABET), Turn("two", ALPHABET)]
    assert capsys.readouterr().out == f"{ALPHABET[4:]}\n"
    with pytest.raises(UsageError, match="expected an answer that was stopped"):
        session.resume()


def test_an_answer_that_was_stopped_twice_is_the_one_without_a_stop(random_model):
    flags = ("-c", "300", "--temperature", "0", "-n")
    session = session_of(random_model, *flags, "5")
    whole = session_of(random_model, *flags, "25")
    whole.ask("one")
    session.ask("one")
    with interrupt_after(4):
        assert session.resume().stop_reason == INTERRUPTED
    session.settings = session.settings.changed(
        "max_tokens", str(25 - len(session.turns[0].ids))
    )
    session.resume()
    assert session.turns == whole.turns
    assert session.last.ids == whole.last.ids


def test_ctrl_c_before_an_answer_begins_or_goes_on_keeps_what_was(
    alphabet_model, monkeypatch
):
    session = session_of(alphabet_model, "-c", "300", "-n", "3")
    for do, turns, then in (
        (lambda: session.ask("one"), [], [Turn("one", "abc")]),
        (session.resume, [Turn("one", "abc")], [Turn("one", "abcdef")]),
    ):
        with monkeypatch.context() as patch:
            press_ctrl_c_at(patch, InferenceEngine, "_read_prompt", 0, after=False)
            do()
        assert (session.turns, session.unanswered) == (turns, None if turns else "one")
        session.resume()
        assert session.turns == then


def test_a_completion_goes_on(alphabet_model, capsys):
    session = session_of(alphabet_model, "--completion", "-n", "2")
    session.ask("see a")
    session.resume()
    assert session.turns == [Turn("see a", "bcde")]
    assert capsys.readouterr().out == "bc\nde\n"


def test_an_interrupt_of_the_report_keeps_the_answer(session, monkeypatch):
    session.statistics = True
    with monkeypatch.context() as patch:
        patch.setattr(
            Console, "note", lambda *_, **__: signal.raise_signal(signal.SIGINT)
        )
        with pytest.raises(KeyboardInterrupt):
            session.ask("one")
    assert session.turns == [Turn("one", ALPHABET)]


def test_attached_text_goes_before_one_text_to_continue(session):
    session.completion = True
    session.attached = "Once upon"
    assert session.with_attached(" a time") == "Once upon a time"
    assert session.with_attached("Then") == "Then"


def test_memory_that_is_refused_is_one_line_and_the_chat_goes_on(session, capsys):
    session.ask("Hello")
    with mock.patch.object(session.tokenizer, "encode", side_effect=MemoryError):
        assert chat._run_turn(session, lambda: "more", nullcontext)
    assert session.turns == [Turn("Hello", ALPHABET)]
    assert capsys.readouterr().err == "error: memory: the system refused the allocation\n"
    assert chat._run_turn(session, lambda: "and more", nullcontext)
    assert session.turns[-1] == Turn("and more", ALPHABET)


QUESTIONS = (
    "Hello!", "My name is Anna.", "What is the capital of Turkey?", "What is 7 + 8?",
    "What is my name?", "What is the flag of Japan?", "What happens in attention?",
    "Which city is the capital of Ohio?", "Thank you.",
    "What is the capital of France? Answer in one word.",
)  # fmt: skip
GREEDY = ("--temperature=0", "--seed=1")
SAMPLED = ("--temperature=1", "--top-p=0.95", "--repeat-penalty=1.1", "--seed=5")


def drawn(session: Session) -> list[int]:
    return [step.token_id for step in session.last.steps]


@pytest.mark.parametrize("flags", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_ten_turns_are_those_of_a_fresh_start_and_run_only_new_tokens(monkeypatch, flags):
    session = session_of(BUNDLED_MODEL, *flags)
    transformer = session.engine.model.transformer
    forward = transformer.forward
    spans = []

    def noted(context: Any, tokens: Any, start_pos: int, **named: Any) -> Any:
        spans.append((start_pos, start_pos + len(tokens)))
        return forward(context, tokens, start_pos, **named)

    monkeypatch.setattr(transformer, "forward", noted)
    held = 0  # positions whose tokens the next prompt begins with
    for question in QUESTIONS:
        messages = session.messages(session.turns, question)
        session.ask(question)
        stats = session.engine.last_stats
        run = [span for span in spans if span[0] < stats.prompt_tokens]
        spans.clear()
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(run))
        assert (run[0][0], run[-1][1]) == (held, stats.prompt_tokens)
        assert stats.cached_tokens == held
        # The end token is read with what follows.
        held = stats.prompt_tokens + stats.new_tokens - 1
        fresh = InferenceEngine(load_model(), speculation=False)
        steps = fresh.chat(messages, sampling=session.settings.sampling)
        assert drawn(session) == [step.token_id for step in steps]
    assert len(session.turns) == 10


OPERATIONS = (
    "ask",
    "ask",
    "ask",
    "regen",
    "undo",
    "clear",
    "system",
    "load",
    "interrupt",
)


@pytest.mark.parametrize("seed", range(4))
def test_after_any_commands_an_answer_is_that_of_a_new_chat(random_model, tmp_path, seed):
    generator = random.Random(seed)
    session = session_of(random_model, "-c", "2000", "-n", "6", "--seed", "3")
    saved = tmp_path / "chat.json"
    session.ask("first")
    run_command(session, f"/save {saved}")
    for number in range(25):
        operation = generator.choice(OPERATIONS)
        if operation == "undo" and session.turns:
            run_command(session, "/undo")
        elif operation == "clear" and number % 3 == 0:
            run_command(session, "/clear")
        elif operation == "system":
            run_command(session, f"/system Be {generator.choice(['short', 'long'])}.")
        elif operation == "load":
            run_command(session, f"/load {saved}")
        elif operation == "interrupt":
            with interrupt_after(generator.randint(1, 5)):
                session.ask("stop " * generator.randint(1, 9))
        elif operation == "regen" and (session.turns or session.unanswered is not None):
            run_command(session, "/regen")
            check_last_turn(session)
        else:
            session.ask(f"question {number}")
            check_last_turn(session)


def check_last_turn(session: Session) -> None:
    *before, last = session.turns
    messages = session.messages(before, last.question)
    engine = InferenceEngine(session.engine.model, 2000)
    steps = engine.chat(messages, 6, session.settings.sampling)
    assert drawn(session) == [step.token_id for step in steps]


def turn(question: str) -> Turn:
    return Turn(question, ALPHABET)


def test_a_full_context_drops_the_oldest_turns_where_that_is_set(session, capsys):
    for question in ("one", "two", "three"):
        session.ask(question)
    assert session.settings.overflow == "refuse"
    with pytest.raises(ContextFullError):
        session.ask("x" * 120)
    session.settings = session.settings.changed("overflow", "drop")
    capsys.readouterr()
    answer = session.ask("x" * 120)
    assert (
        capsys.readouterr().err
        == "context full: the 2 oldest turns are dropped, 1 turn kept\n"
    )
    assert session.turns == [turn("three"), turn("x" * 120)]
    assert answer.stop_reason == "eot"


def prompt_length(session: Session, turns: list[Turn], question: str) -> int:
    return len(session._encoded(session.messages(turns, question)))


@pytest.mark.parametrize(("max_tokens", "needed"), [("none", 1200 // 8), ("30", 30)])
def test_turns_are_dropped_where_an_answer_has_no_room_until_a_quarter_is_free(
    alphabet_model, capsys, max_tokens, needed
):
    session = session_of(alphabet_model, "-c", "1200")
    session.settings = session.settings.changed("overflow", "drop").changed(
        "max_tokens", max_tokens
    )
    counts = []
    for number in range(40):
        question = f"question {number}"
        before = list(session.turns)
        session.ask(question)
        kept = session.turns[:-1]
        counts.append(len(before) - len(kept))
        assert kept == before[counts[-1] :]
        length = prompt_length(session, before, question)
        assert (counts[-1] > 0) == (length + needed > 1200)
        if counts[-1]:
            assert prompt_length(session, kept, question) + 1200 // 4 <= 1200
    assert 0 in counts[-4:]  # the turns that stay are not read again each time
    assert sum(counts) > 9
    assert (
        f"context full: the {max(counts)} oldest turns are dropped, "
        in capsys.readouterr().err
    )


def test_a_message_that_cannot_fit_drops_no_turn(session, capsys):
    session.settings = session.settings.changed("overflow", "drop")
    session.ask("one")
    with pytest.raises(ContextFullError) as caught:
        session.ask("x" * 300)
    assert caught.value.tokens == len(session._encoded(session.messages([], "x" * 300)))
    assert session.turns == [turn("one")]
    assert "dropped" not in capsys.readouterr().err


def test_an_answer_goes_on_without_the_oldest_turns(session, capsys):
    session.ask("one")
    session.ask("two")
    session.settings = session.settings.changed("max_tokens", "10")
    session.ask("x" * 130)
    assert session.turns[-1].answer == ALPHABET[:10]
    session.settings = session.settings.changed("overflow", "drop").changed(
        "max_tokens", "none"
    )
    session.resume()
    assert session.turns == [turn("two"), turn("x" * 130)]
    assert (
        capsys.readouterr().err
        == "context full: the oldest turn is dropped, 1 turn kept\n"
    )


def test_texts_that_are_continued_have_no_turns_to_drop(alphabet_model):
    session = session_of(alphabet_model, "-c", "40", "--completion", "--overflow", "drop")
    with pytest.raises(ContextFullError):
        session.ask("x" * 60)


def test_another_conversation_keeps_what_becomes_of_a_full_context(session):
    session.settings = session.settings.changed("overflow", "drop")
    session.restore(None, [], Settings())
    assert session.settings == Settings(overflow="drop")
