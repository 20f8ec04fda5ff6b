"""The history: what it holds after answers, refusals and interrupts."""

import dataclasses
import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from src.cli import chat
from src.cli.answer import INTERRUPTED
from src.cli.arguments import parse_arguments
from src.cli.commands import run_command
from src.cli.console import Console, UsageError
from src.cli.loading import open_session
from src.cli.session import Session, Turn
from src.inference import ContextFullError, InferenceEngine, Message, SamplingArgs
from src.model import load_model
from tests.cli.conftest import ALPHABET, REPOSITORY, SECONDS, interrupt_after, session_of


def test_an_answer_goes_to_standard_output_and_into_the_history(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.ask("Hello")
    assert capsys.readouterr() == (f"{ALPHABET}\n", "")
    assert session.turns == [Turn("Hello", ALPHABET)]


def test_the_model_sees_system_prompt_history_and_question_in_order(session: Session) -> None:
    session.ask("Hello")
    session.system = "short"
    assert session.messages(session.turns, "more") == [
        Message("system", "short"), Message("user", "Hello"), Message("assistant", ALPHABET),
        Message("user", "more"),
    ]  # fmt: skip


def test_a_message_that_does_not_fit_leaves_the_history_as_it_was(session: Session) -> None:
    session.ask("Hello")
    for length in (300, 3000):
        with pytest.raises(ContextFullError, match="300"):
            session.ask("x" * length)
    assert session.turns == [Turn("Hello", ALPHABET)]


def test_regenerating_replaces_the_last_answer(session: Session) -> None:
    session.ask("Hello")
    session.settings = session.settings.changed("max_tokens", "3")
    session.regenerate()
    assert session.turns == [Turn("Hello", "abc")]


def test_undoing_takes_the_last_turn_back(session: Session) -> None:
    session.ask("one")
    session.ask("two")
    assert session.undo() == "two"
    assert session.turns == [Turn("one", ALPHABET)]


def test_clearing_keeps_system_prompt_and_settings_alone(session: Session) -> None:
    session.system, session.attached = "short", "a text"
    settings = session.settings
    session.ask("one")
    session.clear()
    assert (session.turns, session.system, session.settings) == ([], "short", settings)
    assert session.attached == ""


def test_there_is_nothing_to_regenerate_or_undo_at_first(session: Session) -> None:
    with pytest.raises(UsageError, match="no question"):
        session.regenerate()
    with pytest.raises(UsageError, match="nothing to take back"):
        session.undo()


def test_the_history_as_ids_is_what_the_cache_holds(session: Session) -> None:
    session.ask("Hello")
    ids = session.history_ids()
    cached = session.engine.cached_ids
    assert tuple(ids[: len(cached)]) == cached
    assert len(ids) == len(cached) + 1  # the end token is never run


def test_an_interrupted_answer_stays_and_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session.ask("one")
    with monkeypatch.context() as patch:
        interrupt_after(session, 4, patch)
        answer = session.ask("two")
    assert (answer.text, answer.stop_reason) == ("abcd", INTERRUPTED)
    assert session.turns == [Turn("one", ALPHABET), Turn("two", "abcd")]
    assert session.unanswered is None
    assert capsys.readouterr().out.endswith("\nabc\n")
    session.resume()
    assert session.turns == [Turn("one", ALPHABET), Turn("two", ALPHABET)]
    assert capsys.readouterr().out == f"{ALPHABET[4:]}\n"
    with pytest.raises(UsageError, match="no answer that was stopped"):
        session.resume()


def test_a_question_after_an_interrupted_answer_sees_that_answer(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("-c", "300", "-n", "12", "--seed", "3")
    session, fresh = session_of(random_model, *flags), session_of(random_model, *flags)
    with monkeypatch.context() as patch:
        interrupt_after(session, 4, patch)
        session.ask("two")
    fresh.turns = [Turn("two", session.turns[0].answer)]
    assert session.ask("three").text == fresh.ask("three").text


def test_an_answer_that_was_stopped_twice_is_the_one_without_a_stop(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("-c", "300", "--temperature", "0", "-n")
    session, whole = session_of(random_model, *flags, "5"), session_of(random_model, *flags, "25")
    whole.ask("one")
    session.ask("one")
    with monkeypatch.context() as patch:
        interrupt_after(session, 4, patch)
        assert session.resume().stop_reason == INTERRUPTED
    session.settings = session.settings.changed("max_tokens", str(25 - len(session.turns[0].ids)))
    session.resume()
    assert session.turns == whole.turns
    assert session.last is not None
    assert whole.last is not None
    assert session.last.ids == whole.last.ids


def test_ctrl_c_before_an_answer_goes_on_keeps_what_there_was(
    alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "3")
    session.ask("one")
    with monkeypatch.context() as patch:
        patch.setattr(InferenceEngine, "_prefill", lambda *_: signal.raise_signal(signal.SIGINT))
        session.resume()
    assert session.turns == [Turn("one", "abc")]
    session.resume()
    assert session.turns == [Turn("one", "abcdef")]


def test_a_question_that_was_stopped_before_its_answer_is_kept_apart(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(InferenceEngine, "_prefill", lambda *_: signal.raise_signal(signal.SIGINT))
        session.ask("one")
    assert (session.turns, session.unanswered) == ([], "one")
    session.resume()
    assert session.turns == [Turn("one", ALPHABET)]


def test_nothing_goes_on_at_first_or_after_another_chat_was_taken(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "3")
    with pytest.raises(UsageError, match="no answer that was stopped"):
        session.resume()
    session.ask("one")
    session.restore(None, [Turn("one", "abc")], session.settings)
    with pytest.raises(UsageError, match="no answer that was stopped"):
        session.resume()


def test_a_completion_goes_on(alphabet_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_of(alphabet_model, "--completion", "-n", "2")
    session.ask("see a")
    session.resume()
    assert session.turns == [Turn("see a", "bcde")]
    assert capsys.readouterr().out == "bc\nde\n"


def test_undoing_after_an_interrupt_takes_the_half_answer_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.ask("one")
    with monkeypatch.context() as patch:
        interrupt_after(session, 4, patch)
        session.ask("two")
    assert session.undo() == "two"
    assert session.turns == [Turn("one", ALPHABET)]
    assert session.undo() == "one"


def test_an_interrupt_of_the_report_keeps_the_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.statistics = True
    with monkeypatch.context() as patch:
        patch.setattr(Console, "aside", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            session.ask("one")
    assert session.turns == [Turn("one", ALPHABET)]


def test_restoring_takes_the_place_of_what_there_is(session: Session) -> None:
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
def test_what_does_not_fit_is_not_restored(session: Session, length: int) -> None:
    session.ask("one")
    before = (session.system, session.turns, session.settings, session.last)
    with pytest.raises(ContextFullError, match="tokens >= 300 positions"):
        session.restore(None, [Turn("x" * length, "")], session.settings.changed("seed", "3"))
    assert (session.system, session.turns, session.settings, session.last) == before


def test_attached_text_goes_before_one_question(session: Session) -> None:
    session.attached = "a text"
    assert session.with_attached("what is it?") == "a text\n\nwhat is it?"
    assert session.with_attached("and this?") == "and this?"
    session.completion, session.attached = True, "Once upon"
    assert session.with_attached(" a time") == "Once upon a time"


def test_an_interrupted_second_attempt_takes_the_place_of_the_first(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.ask("one")
    interrupt_after(session, 4, monkeypatch)
    session.regenerate()
    assert session.turns == [Turn("one", "abcd")]


def test_the_handler_of_ctrl_c_is_put_back(session: Session) -> None:
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
        try:
            reasons.append(session.ask("Something that takes a while: " + "la " * 200).stop_reason)
        except KeyboardInterrupt:  # before or after what is the answer's own
            reasons.append(INTERRUPTED)
        signal.setitimer(signal.ITIMER_REAL, 0)
        session.turns[1:] = []
        assert session.ask("And now?").text == expected[1]
    assert INTERRUPTED in reasons


def test_memory_that_python_does_not_get_is_one_line_and_the_chat_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


QUESTIONS = (
    "Hello!", "My name is Anna.", "What is the capital of Turkey?", "What is 7 + 8?",
    "What is my name?", "What is the flag of Japan?", "What happens in attention?",
    "Which city is the capital of Ohio?", "Thank you.",
    "What is the capital of France? Answer in one word.",
)  # fmt: skip
GREEDY = {"temperature": 0.0, "seed": 1}
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "repeat_penalty": 1.1, "seed": 5}
FRESH_PROCESS = """
import json, sys
from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import load_model

asked = json.load(sys.stdin)
messages = [Message(**message) for message in asked["messages"]]
steps = InferenceEngine(load_model()).chat(messages, sampling=SamplingArgs(**asked["sampling"]))
json.dump([step.token_id for step in steps], sys.stdout)
"""


def bundled_session(sampling: dict[str, Any]) -> Session:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in sampling.items()]
    return open_session(parse_arguments(["-q", *flags]), Console(quiet=True))


def drawn(session: Session) -> list[int]:
    assert session.last is not None
    return [step.token_id for step in session.last.steps]


def fresh_engine(messages: list[Message], sampling: SamplingArgs) -> list[int]:
    steps = InferenceEngine(load_model(), speculation=False).chat(messages, sampling=sampling)
    return [step.token_id for step in steps]


def fresh_process(messages: list[Message], sampling: SamplingArgs) -> list[int]:
    asked = {
        "messages": [dataclasses.asdict(message) for message in messages],
        "sampling": dataclasses.asdict(sampling),
    }
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS],
        input=json.dumps(asked).encode(),
        capture_output=True,
        cwd=REPOSITORY,
        timeout=SECONDS,
        check=True,
    )
    ids: list[int] = json.loads(done.stdout)
    return ids


class RunCounter:
    """Notes which positions each step of a session's model runs."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans: list[tuple[int, int]] = []
        transformer = session.engine.model.transformer
        forward = transformer.forward

        def noted(context: Any, tokens: Any, start_pos: int, **named: Any) -> Any:
            self.spans.append((start_pos, start_pos + len(tokens)))
            return forward(context, tokens, start_pos, **named)

        monkeypatch.setattr(transformer, "forward", noted)

    def prompt_tokens_run(self, prompt_tokens: int) -> range:
        """Returns the positions of the prompt that were run; each of them once."""
        spans = [span for span in self.spans if span[0] < prompt_tokens]
        self.spans = []
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start == end
        return range(spans[0][0], spans[-1][1])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "is_process",
    [
        pytest.param(False, id="fresh-engine"),
        pytest.param(True, id="fresh-process", marks=pytest.mark.slow),
    ],
)
def test_ten_turns_are_those_of_a_fresh_start_and_only_new_tokens_are_run(
    monkeypatch: pytest.MonkeyPatch, is_process: bool, sampling: dict[str, Any]
) -> None:
    session = bundled_session(sampling)
    counter = RunCounter(session, monkeypatch)
    args = session.settings.sampling
    held = 0  # positions whose tokens the next prompt begins with
    for question in QUESTIONS:
        messages = session.messages(session.turns, question)
        session.ask(question)
        stats = session.engine.last_stats
        assert stats is not None
        run = counter.prompt_tokens_run(stats.prompt_tokens)
        assert run == range(held, stats.prompt_tokens)
        assert stats.cached_tokens == held
        held = stats.prompt_tokens + stats.new_tokens - 1  # the end token is read with what follows
        fresh = fresh_process if is_process else fresh_engine
        assert drawn(session) == fresh(messages, args)
    assert len(session.turns) == 10


OPERATIONS = ("ask", "ask", "ask", "regen", "undo", "clear", "system", "load", "interrupt")


@pytest.mark.parametrize("seed", range(4))
def test_after_any_commands_an_answer_is_that_of_a_fresh_start(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
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
            with monkeypatch.context() as patch:
                interrupt_after(session, generator.randint(1, 5), patch)
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
