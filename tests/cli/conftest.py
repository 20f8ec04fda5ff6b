"""Models with known answers, and ways to run the command line on them."""

import functools
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest

from src.cli.arguments import parse_arguments
from src.cli.commands import run_command
from src.cli.console import Console
from src.cli.loading import open_session
from src.cli.session import Session
from src.main import main
from tests.cli.reciting_model import write_reciting_directory
from tests.support.pth_writer import SMALL_PARAMS, write_random_meta_directory

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "src.main")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# Begin of text; <|start_header_id|> user <|end_header_id|> and two newlines; <|eot_id|>; the same
# header of the assistant. The names are bytes of one token each.
FORMAT_TOKENS = 1 + (1 + 4 + 1 + 2) + 1 + (1 + 9 + 1 + 2)
SECONDS = 30  # until a test gives up; never a bound on speed
CTRL_C, CTRL_D = "\x03", "\x04"
PROMPT = ">>>"
EDITOR_ENDS = "\x1b[?2004l"  # pasted text is marked no more: the message was taken
TERMINALS = ("xterm-256color", "dumb")
SECONDS_TO_STOP = 5  # the promise is one second on an idle machine

Run = Callable[..., "Outcome"]
Spawn = Callable[..., "pexpect.spawn[str]"]
Typed = Callable[[str], str]


@pytest.fixture(scope="session")
def alphabet_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers with the alphabet."""
    return write_reciting_directory(tmp_path_factory.mktemp("alphabet"), ALPHABET.encode())


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers with the alphabet over and over."""
    directory = tmp_path_factory.mktemp("endless")
    return write_reciting_directory(directory, ALPHABET.encode(), endless=True)


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory, alphabet_model: Path) -> Path:
    """A model whose answer depends on everything before it."""
    directory = tmp_path_factory.mktemp("random")
    params = SMALL_PARAMS | {"use_scaled_rope": True}
    tokenizer = alphabet_model / "tokenizer.model"
    write_random_meta_directory(directory, params, tokenizer_model=tokenizer)
    return directory


@pytest.fixture
def reciting(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model that answers with the given bytes."""

    def write(answer: bytes, **options: Any) -> Path:
        return write_reciting_directory(tmp_path / "reciting", answer, **options)

    return write


def environment(**changes: str) -> dict[str, str]:
    """Returns an environment in which a terminal is capable and a test hears no other settings."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
    # The pseudo-terminal of a test does not answer where its cursor is.
    return kept | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"} | changes


@dataclass(frozen=True)
class Outcome:
    """What one run of the command line left behind."""

    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, with streams that are no terminals."""

    def run_main(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        output, notes = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            patch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="utf-8"))
            patch.setattr(sys, "stderr", io.TextIOWrapper(notes, encoding="utf-8"))
            before = signal.getsignal(signal.SIGINT)
            try:
                code = main([str(argument) for argument in arguments])
            finally:
                signal.signal(signal.SIGINT, before)  # an interrupted run leaves the default
            return Outcome(code, output.getvalue(), notes.getvalue())

    return run_main


def run_program(
    *arguments: str | Path,
    prefix: Sequence[str] = (),
    stdin: bytes = b"",
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    **changes: str,
) -> Outcome:
    """Runs the command line in a process of its own, after the words of another command."""
    done = subprocess.run(
        [*prefix, *PROGRAM, *map(str, arguments)],
        input=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=REPOSITORY,
        env=environment(**changes),
        timeout=4 * SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout or b"", done.stderr or b"")


@pytest.fixture
def run_process() -> Run:
    """Runs the command line in a process of its own, with pipes."""
    return run_program


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Runs the command line in a pseudo-terminal, after the words of another command."""
    children: list[pexpect.spawn[str]] = []

    def spawn_program(
        *arguments: str | Path,
        dimensions: tuple[int, int] = (24, 80),
        prefix: Sequence[str] = (),
        **changes: str,
    ) -> "pexpect.spawn[str]":
        command = [*prefix, *PROGRAM, *map(str, arguments)]
        child = pexpect.spawn(
            command[0],
            command[1:],
            cwd=REPOSITORY,
            env=environment(**changes),
            timeout=SECONDS,
            encoding="utf-8",
            dimensions=dimensions,
        )
        children.append(child)
        return child

    yield spawn_program
    for child in children:
        child.close(force=True)


def ended(child: "pexpect.spawn[str]") -> int | None:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def reply(capsys: pytest.CaptureFixture[str], session: Session, line: str) -> str:
    capsys.readouterr()
    run_command(session, line)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def session_of(model: Path, *flags: str) -> Session:
    options = parse_arguments(["-m", str(model), "-q", *flags])
    return open_session(options, Console(quiet=True))


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


def press_ctrl_c_at(
    patch: pytest.MonkeyPatch, owner: type, name: str, at: int, *, after: bool
) -> None:
    """Sends Ctrl-C before or after one call of a method."""
    method: Callable[..., Any] = getattr(owner, name)
    calls = 0

    @functools.wraps(method)
    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at + 1 and not after:
            signal.raise_signal(signal.SIGINT)
        result = method(*arguments, **named)
        if calls == at + 1:
            signal.raise_signal(signal.SIGINT)
        return result

    patch.setattr(owner, name, counted)


@pytest.fixture
def session(alphabet_model: Path) -> Session:
    """A quiet chat with the model that answers with the alphabet."""
    return session_of(alphabet_model, "-c", "300", "--seed", "3")


def pytest_runtest_call(item: pytest.Item) -> None:
    """Gives the chat of a test the streams that pytest captures during the test itself."""
    if isinstance(item, pytest.Function) and "session" in item.funcargs:
        item.funcargs["session"].console = Console(quiet=True)


@pytest.fixture
def typed(session: Session, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Types a command into this chat, and returns what it replies."""
    return functools.partial(reply, capsys, session)


@pytest.fixture
def open_chat(spawn: Spawn) -> Spawn:
    """Runs a chat in a pseudo-terminal, up to its first prompt."""

    def spawn_chat(*arguments: Any, **more: Any) -> "pexpect.spawn[str]":
        child = spawn(*arguments, **more)
        child.expect(PROMPT)
        return child

    return spawn_chat


def say(child: "pexpect.spawn[str]", line: str, *shown: str) -> None:
    """Types a line into a chat, and waits for what is shown of it and for the next prompt."""
    child.sendline(line)
    for text in shown:
        child.expect_exact(text)
    child.expect(PROMPT)
