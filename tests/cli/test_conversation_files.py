"""`/save`, `/load` and `/read`: what they restore, and that a bad file changes nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from src.cli.commands import run_command
from src.cli.errors import UsageError
from src.cli.session import Session, Turn
from src.cli.settings import Settings
from src.inference import SamplingArgs
from src.model.files import BUNDLED_MODEL
from tests.cli.conftest import ALPHABET
from tests.cli.test_commands import reply
from tests.cli.test_session import session_of

Capture = pytest.CaptureFixture[str]


def state(session: Session) -> tuple[object, ...]:
    turns = tuple(session.turns)
    return session.system, turns, session.settings, session.attached, session.unanswered


def test_a_saved_chat_goes_on_as_if_it_had_not_ended(
    random_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "chat.json"
    session = session_of(random_model, "-c", "600", "--seed", "3", "-n", "9", "--stop", "zzz")
    session.system = "Be short."
    session.ask("one")
    session.ask("two")
    assert reply(capsys, session, f"/save {file}") == (
        f"saved: 2 questions with their answers and the settings, in {file}\n"
    )
    saved = state(session)
    expected = session.ask("three").text
    for fresh in (session_of(random_model, "-c", "600"), session):
        fresh.ask("something else")
        text = reply(capsys, fresh, f"/load {file}")
        assert text.startswith("loaded: 2 questions with their answers and the settings, ")
        assert text.endswith(" of 600 tokens; system prompt: Be short.\n")
        assert state(fresh) == saved
        assert fresh.ask("three").text == expected


def test_a_chat_of_nothing_can_be_saved(
    alphabet_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    reply(capsys, session, f"/save {tmp_path / 'chat'}")
    session.ask("Hello")
    assert "loaded: 0 questions" in reply(capsys, session, f"/load {tmp_path / 'chat'}")
    assert session.turns == []


def test_completions_are_saved_and_loaded_as_such(
    alphabet_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "texts.json"
    session = session_of(alphabet_model, "-c", "300", "--completion")
    session.ask("see y")
    reply(capsys, session, f"/save {file}")
    fresh = session_of(alphabet_model, "-c", "300", "--completion")
    reply(capsys, fresh, f"/load {file}")
    assert fresh.turns == [Turn("see y", "z")]
    chat = session_of(alphabet_model, "-c", "300")
    with pytest.raises(UsageError, match=r"expected a chat, got continued texts .--completion"):
        run_command(chat, f"/load {file}")
    reply(capsys, chat, f"/save {tmp_path / 'chat'}")
    with pytest.raises(UsageError, match=r"expected continued texts, got a chat .without"):
        run_command(session, f"/load {tmp_path / 'chat'}")


def test_a_chat_that_does_not_fit_is_refused_with_both_numbers(
    alphabet_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "chat.json"
    long = session_of(alphabet_model, "-c", "300")
    long.ask("x" * 100)
    reply(capsys, long, f"/save {file}")
    session = session_of(alphabet_model, "-c", "100")
    session.ask("Hello")
    before = state(session)
    with pytest.raises(UsageError, match=r"fewer than the 100 tokens of the context, got 150$"):
        run_command(session, f"/load {file}")
    assert state(session) == before


def missing(_path: Path) -> None:
    """Leaves nothing in the place of the file."""


@pytest.mark.parametrize("command", ["/load", "/read"])
@pytest.mark.parametrize(
    "make",
    [
        missing,
        Path.mkdir,
        os.mkfifo,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\0\1\2"),
        lambda path: path.write_bytes(b"\x1b]0;title\x07\xff"),
        lambda path: path.write_bytes(b"x" * (1 << 24)),
    ],
    ids=["missing", "directory", "fifo", "empty", "binary", "escapes", "huge"],
)
def test_a_bad_file_is_one_line_and_the_chat_stays_as_it_was(
    alphabet_model: Path, tmp_path: Path, command: str, make: Callable[[Path], None]
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    session.attached = "before"
    before = state(session)
    make(tmp_path / "bad\x1bname")
    with pytest.raises(UsageError) as refused:
        run_command(session, f"{command} {tmp_path}/bad\x1bname")
    assert r"bad\x1bname: " in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert state(session) == before


@pytest.mark.parametrize("command", ["/save", "/load", "/read"])
def test_a_file_has_to_be_named(alphabet_model: Path, command: str) -> None:
    with pytest.raises(UsageError, match="a name of a file is wanted"):
        run_command(session_of(alphabet_model, "-c", "300"), command)


def test_texts_that_are_read_go_before_the_next_message(
    alphabet_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("one\n")
    second.write_text("two\n\n")
    session = session_of(alphabet_model, "-c", "300")
    assert reply(capsys, session, f"/read {first}") == (
        "read: 3 characters; they go before your next message, 3 tokens in all\n"
    )
    assert "8 tokens in all" in reply(capsys, session, f"/read {second}")
    session.ask(session.with_attached("What is it?"))
    assert session.turns == [Turn("one\n\ntwo\n\nWhat is it?", ALPHABET)]


@pytest.mark.parametrize("length", [246, 300, 3000])
def test_a_text_that_leaves_no_room_is_refused_with_both_numbers(
    alphabet_model: Path, tmp_path: Path, capsys: Capture, length: int
) -> None:
    file = tmp_path / "text"
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")  # 55 tokens
    file.write_text("x" * length)
    with pytest.raises(UsageError, match=f"fewer than the 300 tokens .*, got {length + 55}"):
        run_command(session, f"/read {file}")
    assert session.attached == ""
    file.write_text("x" * 100)
    assert "100 tokens in all" in reply(capsys, session, f"/read {file}")


def test_a_chat_that_version_0_1_0_saved_is_gone_on_with(capsys: Capture) -> None:
    """The bundled model answered the questions; `tests/golden/chat-0.1.0.json` is as saved then."""
    file = Path(__file__).parents[1] / "golden" / "chat-0.1.0.json"
    session = session_of(BUNDLED_MODEL)
    text = reply(capsys, session, f"/load {file}")
    assert text.startswith("loaded: 2 questions with their answers and the settings, ")
    assert text.endswith("; system prompt: You are a helpful assistant.\n")
    assert session.turns == [
        Turn("What is the capital of France?", "The capital of France is Paris."),
        Turn("And of Italy?", "Rome"),
    ]
    assert session.settings == Settings(SamplingArgs(temperature=0.0, seed=7))
    session.ask("And of Spain?")
    assert len(session.turns) == 3


def test_a_chat_of_a_later_version_is_refused_by_version(
    alphabet_model: Path, tmp_path: Path
) -> None:
    sample = (Path(__file__).parents[1] / "golden" / "chat-0.1.0.json").read_text()
    (tmp_path / "chat.json").write_text(sample.replace('"version": 1', '"version": 2'))
    with pytest.raises(UsageError, match="version: expected 1, got 2"):
        run_command(session_of(alphabet_model, "-c", "300"), f"/load {tmp_path / 'chat.json'}")
