"""Models with known answers, and ways to run the command line on them."""

import functools
import io
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import pytest

from src.cli.arguments import parse_arguments
from src.cli.commands import run_command
from src.cli.console import Console
from src.cli.new_session import open_session
from src.cli.session import Session
from src.main import main
from tests.cli.reciting_model import write_reciting_directory
from tests.support.pth_writer import SMALL_PARAMS, write_random_meta_directory

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "src.main")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# Begin of text; <|start_header_id|> user <|end_header_id|> and two newlines; <|eot_id|>;
# the same header of the assistant. The names are bytes of one token each.
FORMAT_TOKENS = 1 + (1 + 4 + 1 + 2) + 1 + (1 + 9 + 1 + 2)
SECONDS = 30  # until a test gives up; never a bound on speed
PROMPT = ">>>"
EDITOR_ENDS = "\x1b[?2004l"  # pasted text is marked no more: the message was taken
TERMINALS = ("xterm-256color", "dumb")
# The one with the line editor is the slower to type into: where one is enough, it is a
# slow test.
EITHER = [pytest.param("xterm-256color", marks=pytest.mark.slow), "dumb"]
SECONDS_TO_STOP = 5  # the promise is one second on an idle machine

Run = Callable[..., "Outcome"]
Spawn = Callable[..., pexpect.spawn]


@pytest.fixture(scope="session")
def alphabet_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers with the alphabet."""
    return write_reciting_directory(
        tmp_path_factory.mktemp("alphabet"), ALPHABET.encode()
    )


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
    """Returns an environment in which a terminal is capable and a test hears no other
    settings.
    """
    kept = {
        k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")
    }
    # The pseudo-terminal of a test does not answer where its cursor is.
    return kept | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"} | changes


class Outcome(NamedTuple):
    """What one run of the command line left behind."""

    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, with streams that are no terminals."""

    def run_main(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        output = io.BytesIO()
        notes = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(
                sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
            )
            patch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="utf-8"))
            patch.setattr(sys, "stderr", io.TextIOWrapper(notes, encoding="utf-8"))
            before = signal.getsignal(signal.SIGINT)
            try:
                code = main([str(argument) for argument in arguments])
            finally:
                # An interrupted run leaves the default.
                signal.signal(signal.SIGINT, before)
            return Outcome(code, output.getvalue(), notes.getvalue())

    return run_main


def run_program(
    *arguments: str | Path,
    prefix: Sequence[str] = (),
    program: Sequence[str] = PROGRAM,
    stdin: bytes = b"",
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    **changes: str,
) -> Outcome:
    """Runs the command line in a process of its own,
    after the words of another command.
    """
    command = [*prefix, *program, *map(str, arguments)]
    streams = {"input": stdin, "stdout": stdout, "stderr": stderr}
    place = {"cwd": REPOSITORY, "env": environment(**changes)}
    done = subprocess.run(command, **streams, **place, timeout=4 * SECONDS, check=False)
    return Outcome(done.returncode, done.stdout or b"", done.stderr or b"")


def run_code(code: str, *arguments: str | Path, **more: Any) -> Outcome:
    """Runs a few lines of Python in a process of their own."""
    return run_program(*arguments, program=(sys.executable, "-c", code), **more)


def start_program(*arguments: str | Path, **streams: Any) -> "subprocess.Popen[bytes]":
    """Starts the command line in a process of its own."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment(), **streams)


class Terminal(pexpect.spawn):
    """The command line in a pseudo-terminal, after the words of another command."""

    def __init__(
        self,
        *arguments: object,
        dimensions: tuple[int, int] = (24, 80),
        prefix: Sequence[str] = (),
        **changes: str,
    ) -> None:
        first, *rest = (*prefix, *PROGRAM, *map(str, arguments))
        kept = {
            "cwd": REPOSITORY,
            "env": environment(**changes),
            "dimensions": dimensions,
        }
        super().__init__(first, rest, timeout=SECONDS, encoding="utf-8", **kept)

    def shows(self, *texts: str) -> None:
        """Waits for texts and then for the prompt of a chat."""
        for text in (*texts, PROMPT):
            self.expect_exact(text)

    def say(self, line: str, *shown: str) -> None:
        """Types a line into a chat; waits for what is shown of it and for the next
        prompt.
        """
        self.sendline(line)
        self.shows(*shown)

    def press_ctrl(self, key: str, *shown: str) -> None:
        """Presses a key together with Ctrl; waits for what is shown of it and for the
        prompt.
        """
        # After pexpect's pause, unlike `sendcontrol`.
        self.send(chr(ord(key) - ord("a") + 1))
        self.shows(*shown)

    def code(self, key: str = "") -> int | None:
        """Waits for the end, after a key that is pressed with Ctrl; returns the exit
        code.
        """
        if key:
            self.sendcontrol(key)
        self.expect(pexpect.EOF)
        self.close()
        return self.exitstatus


@pytest.fixture
def spawn() -> Iterator[Callable[..., Terminal]]:
    """Opens terminals, and closes them after the test."""
    opened: list[Terminal] = []

    def spawn_program(*arguments: object, **more: Any) -> Terminal:
        opened.append(Terminal(*arguments, **more))
        return opened[-1]

    yield spawn_program
    for terminal in opened:
        terminal.close(force=True)


@pytest.fixture
def open_chat(spawn: Callable[..., Terminal]) -> Callable[..., Terminal]:
    """Opens a chat in a terminal, up to its first prompt."""

    def open_terminal(*arguments: object, **more: Any) -> Terminal:
        terminal = spawn(*arguments, **more)
        terminal.shows()
        return terminal

    return open_terminal


def reply(capsys: pytest.CaptureFixture[str], session: Session, line: str) -> str:
    capsys.readouterr()
    run_command(session, line)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def session_of(model: Path, *flags: str) -> Session:
    options = parse_arguments(["-m", str(model), "-q", *flags])
    return open_session(options, Console(quiet=True))


@contextmanager
def interrupt_after(tokens: int) -> Iterator[None]:
    """Sends Ctrl-C while a token is written."""
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c_at(patch, Console, "answer", tokens - 1, after=False)
        yield


def press_ctrl_c_at(
    patch: pytest.MonkeyPatch, owner: type, name: str, at: int, *, after: bool
) -> None:
    """Sends Ctrl-C before or after one call of a method."""
    method: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count()

    @functools.wraps(method)
    def counted(*arguments: Any, **named: Any) -> Any:
        is_at = next(calls) == at
        if is_at and not after:
            signal.raise_signal(signal.SIGINT)
        result = method(*arguments, **named)
        if is_at:
            signal.raise_signal(signal.SIGINT)
        return result

    patch.setattr(owner, name, counted)


@pytest.fixture
def session(alphabet_model: Path) -> Session:
    """A quiet chat with the model that answers with the alphabet."""
    return session_of(alphabet_model, "-c", "300", "--seed", "3")


def pytest_runtest_call(item: pytest.Item) -> None:
    """Gives the chat of a test the streams that pytest captures during the test
    itself.
    """
    if isinstance(item, pytest.Function) and "session" in item.funcargs:
        session: Any = item.funcargs["session"]
        session.console = Console(quiet=True)


@pytest.fixture
def typed(session: Session, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Types a command into this chat, and returns what it replies."""
    return functools.partial(reply, capsys, session)
