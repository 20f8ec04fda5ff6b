"""The line that tells how far a prompt has been read: where it is shown, and what it says."""

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from src.cli import progress
from src.cli.console import Console
from src.cli.progress import readable_seconds, reading_progress
from tests.cli.conftest import Spawn

CLEAR = "\x1b[K"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


class Notes:
    """A terminal in the place of standard error."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        # Within a test, because pytest replaces the stream before each.
        self._ours, theirs = pty.openpty()
        os.set_blocking(self._ours, False)
        self._stream = open(theirs, "w")  # noqa: SIM115 - closed by the test
        patch.setattr(sys, "stderr", self._stream)
        patch.setenv("TERM", "xterm-256color")
        self.resize(80)

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self._stream.fileno(), termios.TIOCSWINSZ, size)

    def new(self) -> str:
        """Returns what was written since the last time."""
        try:
            return os.read(self._ours, 10000).decode()
        except BlockingIOError:
            return ""

    def close(self) -> None:
        self._stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Notes]]:
    made: list[Notes] = []

    def make() -> Notes:
        made.append(Notes(monkeypatch))
        return made[-1]

    yield make
    for notes in made:
        notes.close()


def test_the_line_tells_the_time_left_and_is_taken_away(
    terminal: Callable[[], Notes], clock: Clock
) -> None:
    notes = terminal()
    show = reading_progress(Console())
    assert show is not None
    show(100, 500)  # 100 tokens were in the cache
    assert notes.new() == ""
    clock.now += 3
    show(200, 500)
    assert notes.new() == f"\rreading the prompt: 200 of 500 tokens, 9 s left{CLEAR}"
    clock.now += 3
    show(300, 500)
    assert notes.new() == f"\rreading the prompt: 300 of 500 tokens, 6 s left{CLEAR}"
    show(500, 500)
    assert notes.new() == f"\r{CLEAR}"


def test_a_prompt_that_is_read_at_once_needs_no_line(
    terminal: Callable[[], Notes], clock: Clock
) -> None:
    notes = terminal()
    show = reading_progress(Console())
    assert show is not None
    show(0, 500)
    clock.now += 0.1
    show(100, 500)
    show(500, 500)
    assert notes.new() == ""


def test_a_narrow_window_cuts_the_line_and_a_very_narrow_one_has_none(
    terminal: Callable[[], Notes],
) -> None:
    notes = terminal()
    console = Console()
    notes.resize(21)
    console.show_progress("x" * 30)
    assert notes.new() == f"\r{'x' * 19}…{CLEAR}"
    notes.resize(1)
    console.clear_progress()
    notes.new()
    console.show_progress("x" * 30)
    console.clear_progress()
    assert notes.new() == ""


@pytest.mark.parametrize("where", ["pipe", "dumb", "quiet"])
def test_where_no_line_can_be_taken_back_there_is_no_progress(
    terminal: Callable[[], Notes], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    notes = terminal()
    if where == "pipe":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    if where == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    console = Console(quiet=where == "quiet")
    assert reading_progress(console) is None
    console.show_progress("x")
    console.clear_progress()
    assert notes.new() == ""


def test_times_are_written_for_people() -> None:
    for seconds, text in (
        (0.2, "1 s"), (8.4, "8 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (3725, "1 h 02 min"),
    ):  # fmt: skip
        assert readable_seconds(seconds) == text


def test_a_long_prompt_shows_its_progress_in_a_terminal(
    spawn: Spawn, endless_model: Path, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_text("word " * 10000)  # a second and more on any machine
    child = spawn("-m", endless_model, "-c", "60000", "-f", prompt, "-n", "1")
    child.expect(r"reading the prompt: \d+ of 50022 tokens, [\d hmins]+ left")
    child.sendintr()
    child.expect_exact("interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
