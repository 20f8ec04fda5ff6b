import errno
import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.cli.console import Console, OutputError, has_colour, is_capable_terminal


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
