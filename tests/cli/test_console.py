"""The line that tells how far a prompt has been read: where it is shown, and what it says."""

import errno
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
from hypothesis import given
from hypothesis import strategies as st

from src.cli.console import Console, OutputError, has_colour, is_capable_terminal, readable_seconds
from src.cli.console import _table as table
from tests.cli.conftest import Spawn


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class BrokenStream(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.file = open("/dev/null", "w")  # noqa: SIM115 - closed by the test

    def write(self, text: str) -> int:
        raise OSError(self.number, "no")

    def fileno(self) -> int:
        return self.file.fileno()


def use_terminals(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, Terminal]:
    """Replaces both streams; within a test, because pytest replaces them before each."""
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return streams


def test_answers_go_to_standard_output_and_notes_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    console.answer("a")
    console.answer("b")
    console.end_answer()
    console.end_answer()
    console.note("note")
    console.error("wrong")
    assert capsys.readouterr() == ("ab\n", "note\nerror: wrong\n")


def test_an_answer_that_ends_its_line_gets_no_second_newline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    console.answer("a\n")
    console.end_answer()
    assert capsys.readouterr().out == "a\n"


def test_quiet_shows_no_notes_but_errors(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    console.note("note")
    console.error("wrong")
    assert capsys.readouterr().err == "error: wrong\n"


def test_an_error_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    Console().error("a\nb\x1b[31m\u2028c" + "x" * 500)
    assert capsys.readouterr().err == r"error: a\nb\x1b[31m\u2028c" + "x" * 500 + "\n"


def test_text_in_brackets_is_not_taken_for_style(capsys: pytest.CaptureFixture[str]) -> None:
    Console().note("[bold]a[/bold] [/] :smile: ")
    assert capsys.readouterr().err == "[bold]a[/bold] [/] :smile: \n"


def test_a_table_in_a_pipe_is_neither_folded_nor_framed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Console().report_table(
        (("name", "left"), ("count", "right")), [("x" * 300, "1"), ("y\x1b", "22")]
    )
    heading, first, second = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert heading.split() == ["name", "count"]
    assert first == "x" * 300 + "      1"
    assert second == r"y\x1b" + " " * 300 + "22"


def test_a_terminal_shows_style_and_escaped_controls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = use_terminals(monkeypatch)
    console = Console()
    console.answer("\x1b[2J")
    console.note("note")
    answers, notes = (stream.getvalue() for stream in terminal)
    assert answers == r"\x1b[2J"
    assert "note" in notes
    assert "\x1b[" in notes


@pytest.mark.parametrize("change", [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")])
def test_style_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    terminal = use_terminals(monkeypatch)
    assert has_colour()
    monkeypatch.setenv(*change)
    assert not has_colour()
    console = Console()
    console.note("note")
    console.error("wrong")
    console.report_heading("heading")
    assert terminal[0].getvalue() == "heading\n"
    assert terminal[1].getvalue() == "note\nerror: wrong\n"


def test_an_empty_no_color_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_terminals(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "")
    assert has_colour()


def test_lines_can_be_edited_only_on_a_capable_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_terminals(monkeypatch)
    assert Console().can_edit_lines
    monkeypatch.setenv("TERM", "dumb")
    assert not is_capable_terminal()
    assert not Console().can_edit_lines


@given(st.text())
def test_no_text_moves_the_cursor_of_a_terminal(text: str) -> None:
    streams = Terminal(), Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        patch.setenv("NO_COLOR", "1")
        console = Console(verbose=True)
        for write in (console.answer, console.note, console.detail, console.error):
            write(text)
        for write in (console.reply, console.report_line, console.report_heading, console.ask):
            write(text)
    for stream in streams:
        assert not [c for c in stream.getvalue() if ord(c) < 32 and c not in "\n\t"]
        assert "\x9b" not in stream.getvalue()


@pytest.mark.parametrize(("number", "closed"), [(errno.EPIPE, True), (errno.ENOSPC, False)])
def test_a_stream_that_takes_nothing_is_an_output_error(
    monkeypatch: pytest.MonkeyPatch, number: int, closed: bool
) -> None:
    stream = BrokenStream(number)
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(OutputError, match="standard output") as error_info:
        Console().answer("a")
    assert error_info.value.closed is closed
    stream.file.close()


def test_a_stream_that_is_not_utf8_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Console().answer("é🙂")
    assert raw.getvalue() == b"??"


def test_closed_streams_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    console = Console()
    console.answer("a")
    console.error("b")


ROWS = (("a.long.name.weight", "[2, 3]", "12"), ("b", "[20, 3]", "120"))
COLUMNS = (("name", "left"), ("shape", "left"), ("bytes", "right"))
HALF = (("name", "left"), ("value", "left"))


def lines(columns: tuple[tuple[str, str], ...], rows: object, width: int | None) -> list[str]:
    from rich.console import Console as RichConsole

    console = RichConsole(width=width or 1000, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table(columns, rows, width))  # type: ignore[arg-type]
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_table_that_fits_has_a_line_per_row() -> None:
    for width in (None, 34, 100):
        assert lines(COLUMNS, ROWS, width) == [
            "name                shape    bytes",
            "a.long.name.weight  [2, 3]      12",
            "b                   [20, 3]    120",
        ]


def test_in_a_narrow_window_the_name_has_a_line_of_its_own() -> None:
    assert lines(COLUMNS, ROWS, 33) == [
        "a.long.name.weight",
        "  [2, 3]    12",
        "b",
        "  [20, 3]  120",
    ]


def test_in_a_very_narrow_window_every_cell_has() -> None:
    assert lines(COLUMNS, (("b", "[20, 3]", ""), ("c", "[2, 3]", "12")), 10) == [
        "b",
        "  [20, 3]",
        "c",
        "  [2, 3]",
        "  12",
    ]


@pytest.mark.parametrize("width", [1, 2, 7, 20])
def test_nothing_of_two_columns_is_left_out(width: int) -> None:
    rows = (("abcdefghij", "klmnopqrst"),)
    shown = lines((("", ""), ("", "")), rows, width)
    assert all(len(line) <= width for line in shown)
    assert sorted("".join(shown).replace(" ", "")) == sorted("abcdefghijklmnopqrst")


def test_without_headings_there_is_no_line_of_them() -> None:
    assert lines((("", "left"), ("", "left")), (("a", "b"),), 80) == ["a  b"]
    assert lines(HALF, (("a", "b"),), 80) == ["name  value", "a     b"]


def test_a_table_without_rows_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Console().report_table((("", "left"), ("", "left")), ())
    assert capsys.readouterr().out.strip() == ""


def test_cells_are_escaped() -> None:
    assert lines(HALF, (("\x1b[2J", "a\nb"),), None)[1] == r"\x1b[2J  a\nb"


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
    monkeypatch.setattr("src.cli.console.time", made)
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
    show = Console().timed_progress("reading the prompt", "tokens")
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
    show = Console().timed_progress("reading the prompt", "tokens")
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
    assert console.timed_progress("reading", "tokens") is None
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
    prompt.write_text("word " * 20000)  # a second and more on any machine
    child = spawn("-m", endless_model, "-c", "120000", "-f", prompt)
    child.expect(r"reading the prompt: \d+ of 100022 tokens, [\d hmins]+ left")
    child.sendintr()
    child.expect_exact("interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
