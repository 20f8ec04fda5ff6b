"""Where the text of a run goes: answers and reports to standard output, all else to
standard error.

Text from models and files passes the escape filter before it reaches a terminal. What
goes to a file or a pipe from standard output is written as it is.
"""

import io
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ..ml.errors import LlamaBoltsError
from ..untrusted import escape_controls, escape_line, reason_of

if TYPE_CHECKING:
    from .wrapping import WordWrap

# Parameters of SGR. Source: ECMA-48, 8.3.117.
_BOLD = "1"
_DIM = "2"
_RED = "1;31"
_YELLOW = "1;33"
_PLAIN_TERMINALS = ("", "dumb", "unknown")
_NARROWEST_PROGRESS = 20  # columns
_CLEAR_TO_END_OF_LINE = "\x1b[K"
_WORTH_SECONDS = 1.0  # what takes less time needs no line of progress
_GAP = "  "  # between the cells of a row


class CommandLineError(LlamaBoltsError):
    """Root of the errors of the command line."""


class UsageError(CommandLineError):
    """A request that makes no sense; nothing was run."""


@contextmanager
def refused(expected: str) -> Iterator[None]:
    """Turn what the system or a decoder refuses inside into a UsageError that says
    why.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(f"{expected}, got other bytes at byte {error.start}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(f"{expected}, got {reason_of(error)}") from None


class DifferenceError(CommandLineError):
    """A result that is not the expected one; the report before it says what differs."""


class OutputError(Exception):
    """Standard output takes no more text; `closed`: the reader has gone, which is not a
    fault.

    It is not a LlamaBoltsError: a chat goes on after those, but ends after this one.
    """

    def __init__(self, message: str, *, closed: bool) -> None:
        super().__init__(message)
        self.closed = closed


class Console:
    """The two streams of a run; `quiet` hides notes, `verbose` shows details too."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._output = _Output("standard output", sys.stdout)
        # What it does not take is lost: an answer does not end because nobody hears of
        # it.
        self._notes = _Output("standard error", sys.stderr, is_needed=False)
        self._answer_line_is_open = self._thought_is_open = False
        self._progress_is_shown = False
        # Called when a signal ends the process: a chat gives the terminal its state back.
        self.before_death: Callable[[], None] = lambda: None

    @property
    def can_edit_lines(self) -> bool:
        """Whether standard error is a terminal on which a line editor can draw."""
        return self._notes.is_terminal and is_capable_terminal()

    def show_progress(self, text: str) -> None:
        """Write a line that the next one replaces; nothing when quiet, or where that
        cannot be.
        """
        columns = self._notes.columns
        if self.can_edit_lines and not self.quiet and columns >= _NARROWEST_PROGRESS:
            self._progress_is_shown = True
            self._notes.write(
                f"\r{escape_line(text, columns - 1)}{_CLEAR_TO_END_OF_LINE}"
            )

    def clear_progress(self) -> None:
        """Take back what `show_progress` wrote."""
        if self._progress_is_shown:
            self._progress_is_shown = False
            self._notes.write(f"\r{_CLEAR_TO_END_OF_LINE}")

    def timed_progress(self, work: str, units: str) -> Callable[[int, int], None] | None:
        """Return what shows how much is done of how much, with the time left, until all
        is done.

        None: it cannot be shown. Where the work may end early, call `clear_progress`
        after it.
        """
        if not self.can_edit_lines or self.quiet:
            return None
        started = 0.0
        first = -1

        def show(done: int, total: int) -> None:
            nonlocal started, first
            now = time.perf_counter()
            if first < 0:
                started = now
                first = done
            elif done == total:
                self.clear_progress()
            else:
                left = (now - started) / (done - first) * (total - done)
                if now - started + left >= _WORTH_SECONDS:
                    time_left = readable_seconds(left)
                    self.show_progress(
                        f"{work}: {done} of {total} {units}, {time_left} left"
                    )

        return show

    def answer(self, text: str) -> None:
        """Write a part of an answer to standard output, at once."""
        if text:
            self._end_thought()
            shown = text
            if self._output.is_terminal:
                shown = self._output.wrapped(escape_controls(text))
            if shown:
                # Noted first: Ctrl-C may fall between the two.
                self._answer_line_is_open = not shown.endswith("\n")
            self._output.write(shown)

    def thought(self, text: str) -> None:
        """Write a part of what a model thinks to standard error, dimmed; nothing when
        quiet.
        """
        if text and not self.quiet:
            self._thought_is_open = True
            shown = self._notes.wrapped(escape_controls(text))
            dimmed = f"\x1b[{_DIM}m{shown}\x1b[22m"
            self._notes.write(dimmed if self._notes.has_colour else shown)

    def _end_thought(self) -> None:
        if self._thought_is_open:
            self._thought_is_open = False
            self._notes.end_wrapped()
            self._notes.write("\n\n")

    def end_answer(self, *, interrupted: bool = False) -> None:
        """End the line of the answer; after an interrupt, without waiting for a slow
        reader.
        """
        self._end_thought()
        self._output.end_wrapped()
        if self._answer_line_is_open:
            self._answer_line_is_open = False
            if not interrupted or self._output.takes_text_now():
                self._output.write("\n")

    def report(self, *lines: str) -> None:
        """Write lines of a report to standard output."""
        self._output.write("".join(map(self._output.line, lines)))

    def report_heading(self, text: str) -> None:
        """Write a heading of a report to standard output, bold where there is colour."""
        self._output.write(self._output.line(text, _BOLD))

    def report_table(
        self, headings: Sequence[str], rows: Iterable[Sequence[str]], sides: str = "<<"
    ) -> None:
        """Write a table to standard output; `sides` has a letter for each column, as in
        `aligned`.

        Headings that are empty take no line.
        """
        cells = [headings, *([escape_line(cell) for cell in row] for row in rows)]
        heading, *lines = aligned(cells, sides)
        if any(headings):
            self.report_heading(heading)
        self.report(*lines)

    def report_markdown(self, text: str) -> None:
        """Write Markdown to standard output: rendered in a terminal,
        elsewhere as it is.
        """
        if self._output.is_terminal:
            from rich.console import Console as RichConsole  # which takes a while to load
            from rich.markdown import Markdown

            rendered = io.StringIO()
            screen = RichConsole(file=rendered, force_terminal=self._output.has_colour)
            screen.print(Markdown(text, hyperlinks=False))
            text = rendered.getvalue().rstrip()
        self._output.write(f"{text}\n")

    def note(self, text: str, *, also_when_quiet: bool = False) -> None:
        """Write a line to standard error, dimmed where there is colour; nothing when
        quiet.
        """
        if also_when_quiet or not self.quiet:
            self._notes.write(self._notes.paragraph(text, _DIM))

    def detail(self, text: str) -> None:
        """Write a line to standard error when verbose."""
        if self.verbose:
            self.note(text)

    def reply(self, text: str) -> None:
        """Write to standard error what a command of the chat asked for.

        A text of several lines may be a table, which is not wrapped.
        """
        is_line = "\n" not in text
        self._notes.write(
            self._notes.paragraph(text) if is_line else escape_controls(f"{text}\n")
        )

    def warn(self, text: str) -> None:
        """Write one line `warning: ...` to standard error."""
        self._notes.write(self._notes.paragraph(f"warning: {text}", _YELLOW))

    def error(self, text: str) -> None:
        """Write one line `error: ...` to standard error."""
        self._notes.write(self._notes.paragraph(f"error: {text}", _RED))

    def ask(self, text: str) -> None:
        """Write a question to standard error and stay on its line."""
        self._notes.write(escape_line(text))


class _Output:
    """One stream, with what its reader can show."""

    def __init__(
        self, name: str, stream: TextIO | None, *, is_needed: bool = True
    ) -> None:
        self._name = name
        self._is_needed = is_needed
        self._stream = stream  # None: the process was started with it closed
        self.is_terminal = stream is not None and stream.isatty()
        self.has_colour = self.is_terminal and has_colour()
        self._raw: io.FileIO | None = None
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that is not UTF-8 shows "?" for what it cannot encode.
            stream.reconfigure(errors="replace")
            # Past Python's buffer: what Ctrl-C left there would be written at exit, and
            # wait again.
            buffer = getattr(stream.buffer, "raw", stream.buffer)
            self._raw = buffer if isinstance(buffer, io.FileIO) else None
        self._wrap: WordWrap | None = None

    @property
    def columns(self) -> int:
        """The width of the terminal; 0 where there is none, or where it is not known."""
        try:
            return (
                os.get_terminal_size(self._stream.fileno()).columns if self._stream else 0
            )
        except (OSError, ValueError):
            return 0

    def write(self, text: str) -> None:
        """Write so that it is seen at once."""
        if self._stream is None:
            return
        try:
            if self._raw is None:
                self._stream.write(text)
                self._stream.flush()
            else:
                data = text.encode(self._stream.encoding, "replace")
                while data:
                    written = self._raw.write(data)
                    if (
                        written is None
                    ):  # another process set the descriptor not to wait, perhaps
                        select.select([], [self._raw], [])
                    data = data[written or 0 :]
        except OSError as error:
            with open(
                os.devnull, "w"
            ) as nowhere:  # else the flush at exit fails again, and aloud
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if self._is_needed:
                closed = isinstance(error, BrokenPipeError)
                raise OutputError(
                    f"{self._name}: {error.strerror}", closed=closed
                ) from None

    def wrapped(self, text: str) -> str:
        """Return a part of a text, without controls, as a terminal wraps it at blanks."""
        if not (self.is_terminal and is_capable_terminal()):
            return text
        from .wrapping import WordWrap  # a pipe does without

        if self._wrap is None:
            self._wrap = WordWrap()
        return self._wrap.wrapped(text, self.columns)

    def end_wrapped(self) -> None:
        """Begin another text."""
        self._wrap = None

    def takes_text_now(self) -> bool:
        """Return whether a few characters can be written without waiting for the
        reader.
        """
        return self._raw is None or bool(select.select([], [self._raw], [], 0)[1])

    def line(self, text: str, style: str = "") -> str:
        """Return text that stays on one line, in a style where there is colour."""
        return self._styled(escape_line(text), style)

    def paragraph(self, text: str, style: str = "") -> str:
        """Return a line of text as a terminal wraps it at blanks."""
        line = escape_line(text)
        if self.is_terminal and is_capable_terminal():
            from .wrapping import wrapped_line

            line = wrapped_line(line, self.columns)
        return self._styled(line, style)

    def _styled(self, line: str, style: str) -> str:
        return (
            f"\x1b[{style}m{line}\x1b[0m\n" if style and self.has_colour else f"{line}\n"
        )


def is_capable_terminal() -> bool:
    """Return whether the terminal understands more than plain text."""
    return os.environ.get("TERM", "") not in _PLAIN_TERMINALS


def has_colour() -> bool:
    """Return whether colour is wanted. Source: https://no-color.org."""
    return is_capable_terminal() and not os.environ.get("NO_COLOR")


def readable_seconds(seconds: float) -> str:
    """Write a time for people: `8 s`, `2 min 05 s`, `1 h 02 min`."""
    minutes, rest = divmod(max(1, round(seconds)), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return a line per row, with each column on its side: `<` or `>`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (f"{row[i]:{sides[i]}{width}}" for i, width in enumerate(widths))
        lines.append(_GAP.join(cells).rstrip())
    return lines
