"""The history: what it holds after answers, refusals and interrupts."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from src.cli import chat
from src.cli.answer import INTERRUPTED
from src.cli.arguments import parse_arguments
from src.cli.console import Console
from src.cli.errors import UsageError
from src.cli.loading import open_session
from src.cli.session import Session, Turn
from src.inference import ContextFullError, Message
from tests.cli.conftest import ALPHABET


def session_of(model: Path, *flags: str) -> Session:
    options = parse_arguments(["-m", str(model), "-q", *flags])
    return open_session(options, Console(quiet=True))


def test_an_answer_goes_to_standard_output_and_into_the_history(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    assert capsys.readouterr() == (f"{ALPHABET}\n", "")
    assert session.turns == [Turn("Hello", ALPHABET)]


def test_the_model_sees_system_prompt_history_and_question_in_order(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    session.system = "short"
    assert session.messages(session.turns, "more") == [
        Message("system", "short"),
        Message("user", "Hello"),
        Message("assistant", ALPHABET),
        Message("user", "more"),
    ]


def test_a_message_that_does_not_fit_leaves_the_history_as_it_was(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    for length in (300, 3000):
        with pytest.raises(ContextFullError, match="300"):
            session.ask("x" * length)
    assert session.turns == [Turn("Hello", ALPHABET)]


def test_regenerating_replaces_the_last_answer(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    session.settings = session.settings.changed("max_tokens", "3")
    session.regenerate()
    assert session.turns == [Turn("Hello", "abc")]


def test_undoing_takes_the_last_turn_back(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("one")
    session.ask("two")
    assert session.undo() == "two"
    assert session.turns == [Turn("one", ALPHABET)]


def test_clearing_keeps_system_prompt_and_settings(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.system = "short"
    settings = session.settings
    session.ask("one")
    session.clear()
    assert (session.turns, session.system, session.settings) == ([], "short", settings)


def test_there_is_nothing_to_regenerate_or_undo_at_first(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    with pytest.raises(UsageError, match="no question"):
        session.regenerate()
    with pytest.raises(UsageError, match="nothing to take back"):
        session.undo()


def test_the_history_as_ids_is_what_the_cache_holds(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    ids = session.history_ids()
    cached = session.engine.cached_ids
    assert tuple(ids[: len(cached)]) == cached
    assert len(ids) == len(cached) + 1  # the end token is never run


def interrupt_after(session: Session, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends Ctrl-C while a token is written."""
    write, count = Console.answer, 0

    def answer(console: Console, text: str) -> None:
        nonlocal count
        count += 1
        if count == tokens:
            signal.raise_signal(signal.SIGINT)
        write(console, text)

    monkeypatch.setattr(Console, "answer", answer)


def test_an_interrupted_question_leaves_no_trace_and_can_be_asked_again(
    alphabet_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("one")
    with monkeypatch.context() as patch:
        interrupt_after(session, 4, patch)
        answer = session.ask("two")
    assert (answer.text, answer.stop_reason) == ("abcd", INTERRUPTED)
    assert session.turns == [Turn("one", ALPHABET)]
    assert capsys.readouterr().out.endswith("\nabc\n")
    session.regenerate()
    assert session.turns == [Turn("one", ALPHABET), Turn("two", ALPHABET)]


def test_undoing_after_an_interrupt_forgets_the_question_that_was_interrupted(
    alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("one")
    with monkeypatch.context() as patch:
        interrupt_after(session, 4, patch)
        session.ask("two")
    assert session.undo() == "two"
    assert session.turns == [Turn("one", ALPHABET)]
    assert session.undo() == "one"


def test_an_interrupt_of_the_report_keeps_the_answer(
    alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.statistics = True
    with monkeypatch.context() as patch:
        patch.setattr(Console, "aside", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            session.ask("one")
    assert session.turns == [Turn("one", ALPHABET)]


def test_restoring_takes_the_place_of_what_there_is(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("one")
    session.attached = "x"
    settings = session.settings.changed("max_tokens", "3")
    session.restore("short", [Turn("a", "b")], settings)
    assert (session.system, session.turns, session.settings) == (
        "short",
        [Turn("a", "b")],
        settings,
    )
    assert (session.attached, session.last, session.unanswered) == ("", None, None)
    assert session.ask("c").text == "abc"


@pytest.mark.parametrize("length", [300, 400])
def test_what_does_not_fit_is_not_restored(alphabet_model: Path, length: int) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("one")
    before = (session.system, session.turns, session.settings, session.last)
    with pytest.raises(ContextFullError, match="tokens >= 300 positions"):
        session.restore(None, [Turn("x" * length, "")], session.settings.changed("seed", "3"))
    assert (session.system, session.turns, session.settings, session.last) == before


def test_attached_text_goes_before_one_question(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.attached = "a text"
    assert session.with_attached("what is it?") == "a text\n\nwhat is it?"
    assert session.with_attached("and this?") == "and this?"
    session.completion, session.attached = True, "Once upon"
    assert session.with_attached(" a time") == "Once upon a time"


def test_clearing_drops_what_was_attached(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.attached = "a text"
    session.clear()
    assert session.attached == ""


def test_an_interrupted_second_attempt_keeps_the_first_answer(
    alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("one")
    interrupt_after(session, 4, monkeypatch)
    session.regenerate()
    assert session.turns == [Turn("one", ALPHABET)]


def test_the_handler_of_ctrl_c_is_put_back(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300")
    before = signal.getsignal(signal.SIGINT)
    session.ask("one")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def ctrl_c_by_timer() -> Iterator[None]:
    """Lets the timer of the process press Ctrl-C, as long as an answer listens to it."""
    idle = signal.getsignal(signal.SIGINT)

    def press(_number: int, _frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is not idle:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, press)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("ctrl_c_by_timer")
def test_after_an_interrupt_at_any_moment_the_next_answer_is_what_it_would_have_been(
    random_model: Path,
) -> None:
    flags = ("--temperature", "0", "-n", "12", "-c", "1024")
    fresh = session_of(random_model, *flags)
    expected = [fresh.ask("How are you?").text, fresh.ask("And now?").text]
    generator = random.Random(1)
    reasons = []
    for _ in range(12):
        session = session_of(random_model, *flags)
        assert session.ask("How are you?").text == expected[0]
        signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.0005, 0.02))
        reasons.append(session.ask("Something that takes a while: " + "la " * 200).stop_reason)
        signal.setitimer(signal.ITIMER_REAL, 0)
        session.turns[1:] = []
        assert session.ask("And now?").text == expected[1]
    assert INTERRUPTED in reasons


def test_memory_that_python_does_not_get_is_one_line_and_the_chat_goes_on(
    alphabet_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    lines = iter(["more", "and more"])
    reader = SimpleNamespace(read=lambda: next(lines))

    def refuse(*_arguments: object, **_named: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(session.tokenizer, "encode", refuse)
        assert chat._take_turn_or_say_why_not(session, reader)
    assert session.turns == [Turn("Hello", ALPHABET)]
    assert capsys.readouterr().err == "error: memory: the system refused the allocation\n"
    assert chat._take_turn_or_say_why_not(session, reader)
    assert session.turns[-1] == Turn("and more", ALPHABET)
