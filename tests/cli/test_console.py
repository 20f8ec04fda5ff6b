"""The line that tells how far a prompt has been read: where it is shown, and what it
says.
"""

import io
import os
import pty
import re
import sys
import termios
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.cli.console import Console, has_colour, is_capable_terminal, readable_seconds
from tests.support.clock import Clock


def test_answers_go_to_standard_output_and_notes_to_standard_error(capsys):
    console = Console()
    console.answer("a")
    console.answer("b")
    console.end_answer()
    console.end_answer()
    console.answer("ends its line\n")
    console.end_answer()
    console.note("[bold]a[/bold] [/] :smile: ")  # no style
    console.error("wrong")
    said = "[bold]a[/bold] [/] :smile: \nerror: wrong\n"
    assert capsys.readouterr() == ("ab\nends its line\n", said)
    console = Console(quiet=True)
    console.note("note")
    console.error("wrong")
    assert capsys.readouterr().err == "error: wrong\n"


def test_an_error_is_one_line_whatever_it_says(capsys):
    Console().error("a\nb\x1b[31m\u2028c" + "x" * 500)
    assert capsys.readouterr().err == r"error: a\nb\x1b[31m\u2028c" + "x" * 500 + "\n"


def test_a_table_in_a_pipe_is_neither_folded_nor_framed(capsys):
    Console().report_table(("name", "count"), [("x" * 300, "1"), ("y\x1b", "22")], "<>")
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "count"]
    assert rows == ["x" * 300 + "      1", r"y\x1b" + " " * 300 + "22"]


def test_a_terminal_shows_style_and_escaped_controls(screen, monkeypatch):
    answers = screen("stdout")
    notes = screen("stderr")
    monkeypatch.setenv("NO_COLOR", "")  # is none
    console = Console()
    assert console.can_edit_lines
    console.answer("\x1b[2J")
    console.note("note")
    assert (answers.new(), notes.new()) == (r"\x1b[2J", "\x1b[2mnote\x1b[0m\r\n")


@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")]
)
def test_style_can_be_switched_off(screen, monkeypatch, name, value):
    answers = screen("stdout")
    notes = screen("stderr")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colour()
    monkeypatch.setenv(name, value)
    assert not has_colour()
    console = Console()
    assert is_capable_terminal() is console.can_edit_lines is (name != "TERM")
    console.note("note")
    console.error("wrong")
    console.report_heading("heading")
    assert (answers.new(), notes.new()) == ("heading\r\n", "note\r\nerror: wrong\r\n")


@given(st.text())
def test_no_text_moves_the_cursor_of_a_terminal(text):
    streams = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            patch.setattr(stream, "isatty", lambda: True, raising=False)
            patch.setattr(sys, name, stream)
        patch.setenv("NO_COLOR", "1")
        console = Console(verbose=True)
        for write in (console.answer, console.note, console.detail, console.error):
            write(text)
        console.reply(text)
        console.report(text)
        console.report_heading(text)
        console.ask(text)
    for stream in streams:
        assert not [c for c in stream.getvalue() if ord(c) < 32 and c not in "\n\t"]
        assert "\x9b" not in stream.getvalue()


def test_a_terminal_gets_answers_and_lines_wrapped_at_blanks_and_tables_as_they_are(
    screen,
):
    answers = screen("stdout")
    notes = screen("stderr")
    answers.resize(23)
    notes.resize(23)
    console = Console()
    for part in ("one two three ", "four fi", "ve six"):
        console.answer(part)
    console.end_answer()
    assert answers.new() == "one two three four fiv\x1b[4D\x1b[K\r\nfive six\r\n"
    table = "one two three four five six\nseven"
    console.reply(table)
    assert notes.new() == table.replace("\n", "\r\n") + "\r\n"
    for write in (console.reply, console.warn, console.error, console.note):
        write("one two three four five six")
        shown = re.sub(r"\x1b\[[0-9;]*m", "", notes.new())
        assert shown.count("\r\n") == 2
        assert all(len(row) < 23 and row == row.rstrip() for row in shown.split("\r\n"))


def test_a_stream_that_is_not_utf8_gets_question_marks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Console().answer("é🙂")
    assert raw.getvalue() == b"??"


CLEAR = "\x1b[K"


class Screen:
    """A terminal in the place of a stream; within a test, as pytest replaces them before
    each.
    """

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self._ours, theirs = pty.openpty()
        self._stream = open(theirs, "w")  # noqa: SIM115 - closed by the test
        patch.setattr(sys, name, self._stream)
        patch.setenv("TERM", "xterm-256color")
        self.resize(80)

    def resize(self, columns: int) -> None:
        termios.tcsetwinsize(self._stream.fileno(), (24, columns))

    def new(self) -> str:
        """Returns what was written since the last time; a mark tells that all of it has
        come.
        """
        os.write(self._stream.fileno(), b"\0")
        written = b""
        while not written.endswith(b"\0"):
            written += os.read(self._ours, 10000)
        return written[:-1].decode()

    def close(self) -> None:
        self._stream.close()
        os.close(self._ours)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Screen]]:
    made: list[Screen] = []

    def make(name: str) -> Screen:
        made.append(Screen(monkeypatch, name))
        return made[-1]

    yield make
    for one in made:
        one.close()


ROWS = (("a.long.name.weight", "[2, 3]", "12"), ("b\x1b", "[20, 3]", "120"))
COLUMNS = ("name", "shape", "bytes")
IN_LINES = [
    "name                shape    bytes",
    "a.long.name.weight  [2, 3]      12",
    r"b\x1b               [20, 3]    120",
]


@pytest.mark.parametrize(
    ("columns", "rows", "lines"),
    [
        (COLUMNS, ROWS, IN_LINES),
        (("", ""), [("a", "b\n")], [r"a  b\n"]),
        (("", ""), [], []),
    ],
)
def test_a_table_has_a_line_per_row(capsys, columns, rows, lines):
    Console().report_table(columns, rows, "<<>")
    assert capsys.readouterr().out.splitlines() == lines


def test_the_line_tells_the_time_left_and_is_taken_away(screen, monkeypatch):
    notes = screen("stderr")
    clock = Clock(monkeypatch)
    show = Console().timed_progress("reading the prompt", "tokens")
    show(100, 500)  # 100 tokens were in the cache
    assert notes.new() == ""
    clock.advance(3)
    show(200, 500)
    assert notes.new() == f"\rreading the prompt: 200 of 500 tokens, 9 s left{CLEAR}"
    clock.advance(3)
    show(300, 500)
    assert notes.new() == f"\rreading the prompt: 300 of 500 tokens, 6 s left{CLEAR}"
    show(500, 500)
    assert notes.new() == f"\r{CLEAR}"
    show = Console().timed_progress("reading the prompt", "tokens")
    show(0, 500)
    clock.advance(0.1)  # what is read at once needs no line
    show(100, 500)
    show(500, 500)
    assert notes.new() == ""


def test_a_narrow_window_cuts_the_line_and_a_very_narrow_one_has_none(screen):
    notes = screen("stderr")
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
def test_where_no_line_can_be_taken_back_there_is_no_progress(screen, monkeypatch, where):
    notes = screen("stderr")
    if where == "pipe":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    if where == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    console = Console(quiet=where == "quiet")
    assert console.timed_progress("reading", "tokens") is None
    console.show_progress("x")
    console.clear_progress()
    assert notes.new() == ""


def test_times_are_written_for_people():
    texts = {
        0.2: "1 s",
        8.4: "8 s",
        59.6: "1 min 00 s",
        125: "2 min 05 s",
        3725: "1 h 02 min",
    }
    assert {seconds: readable_seconds(seconds) for seconds in texts} == texts


def test_a_long_prompt_shows_its_progress_in_a_terminal(spawn, endless_model, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_text("word " * 20000)  # a second and more on any machine
    child = spawn("-m", endless_model, "-c", "120000", "-f", prompt)
    child.expect(r"reading the prompt: \d+ of 100022 tokens, [\d hmins]+ left")
    child.sendintr()
    child.expect_exact("interrupted")
    assert child.code() == 130
