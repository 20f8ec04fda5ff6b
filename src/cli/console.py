"""Terminal output: answers and reports on stdout, everything else on stderr.

Text from models and files is escaped before it is written to a terminal. If standard
output is a file or a pipe, text is written to it unchanged.
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

# SGR (Select Graphic Rendition) parameters. Source: ECMA-48, 8.3.117.
_BOLD = "1"
_DIM = "2"
_RED = "1;31"
_YELLOW = "1;33"
_PLAIN_TERMINALS = ("", "dumb", "unknown")
_NARROWEST_PROGRESS = 20  # minimum width of the terminal, in columns
_CLEAR_TO_END_OF_LINE = "\x1b[K"
_WORTH_SECONDS = 1.0  # minimum duration of work that shows a progress line
_GAP = "  "  # space between the cells of a row


class CommandLineError(LlamaBoltsError):
    """Base class of all command-line errors."""


class UsageError(CommandLineError):
    """Raised for an invalid request, before anything is changed."""


@contextmanager
def usage_errors(expected: str) -> Iterator[None]:
    """Convert an OSError or a decoding error to a UsageError that states the reason."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{expected}, got an invalid byte at offset {error.start}"
        ) from None
    except (OSError, ValueError) as error:  # a NUL in the path raises ValueError
        raise UsageError(f"{expected}, got {reason_of(error)}") from None


class DifferenceError(CommandLineError):
    """Raised when a comparison fails, after a report that lists the differences."""


class OutputError(Exception):
    """Raised when standard output cannot be written.

    `closed` is True if the reader has ended, which is not a failure of this program. This
    class does not derive from LlamaBoltsError, because those errors do not end a chat.
    """

    def __init__(self, message: str, *, closed: bool) -> None:
        super().__init__(message)
        self.closed = closed


class Console:
    """The two output streams; `quiet` hides notes, `verbose` adds details."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._output = _Output("standard output", sys.stdout)
        # Errors on standard error are ignored, so that they cannot end an answer.
        self._notes = _Output("standard error", sys.stderr, is_needed=False)
        self._answer_line_is_open = self._thought_is_open = False
        self._progress_is_shown = False
        # Called before a signal ends the process. A chat uses it to restore the terminal.
        self.before_death: Callable[[], None] = lambda: None

    @property
    def can_edit_lines(self) -> bool:
        """Whether standard error is a terminal that supports a line editor."""
        return self._notes.is_terminal and is_capable_terminal()

    def show_progress(self, text: str) -> None:
        """Print a line that the next one replaces, unless quiet.

        Nothing is printed if the stream is not a terminal or if the terminal is too
        narrow.
        """
        columns = self._notes.columns
        if self.can_edit_lines and not self.quiet and columns >= _NARROWEST_PROGRESS:
            self._progress_is_shown = True
            self._notes.write(
                f"\r{escape_line(text, columns - 1)}{_CLEAR_TO_END_OF_LINE}"
            )

    def clear_progress(self) -> None:
        """Erase the line printed by `show_progress`."""
        if self._progress_is_shown:
            self._progress_is_shown = False
            self._notes.write(f"\r{_CLEAR_TO_END_OF_LINE}")

    def timed_progress(self, work: str, units: str) -> Callable[[int, int], None] | None:
        """Return a callback that shows progress and remaining time.

        Returns None if progress cannot be shown. Call `clear_progress` after work that
        may end early.
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
        """Write part of an answer to standard output immediately."""
        if text:
            self._end_thought()
            visible = text
            if self._output.is_terminal:
                visible = self._output.wrapped(escape_controls(text))
            if visible:
                # Set before writing, because Ctrl-C may interrupt between the statements.
                self._answer_line_is_open = not visible.endswith("\n")
            self._output.write(visible)

    def thought(self, text: str) -> None:
        """Write part of a thought to standard error, dimmed, unless quiet."""
        if text and not self.quiet:
            self._thought_is_open = True
            visible = self._notes.wrapped(escape_controls(text))
            dimmed = f"\x1b[{_DIM}m{visible}\x1b[22m"
            self._notes.write(dimmed if self._notes.has_colour else visible)

    def _end_thought(self) -> None:
        if self._thought_is_open:
            self._thought_is_open = False
            self._notes.end_wrapped()
            self._notes.write("\n\n")

    def end_answer(self, *, interrupted: bool = False) -> None:
        """End the answer's line; if interrupted, do not wait for a slow reader."""
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
        """Write a report heading to standard output, in bold if styles are supported."""
        self._output.write(self._output.line(text, _BOLD))

    def report_table(
        self, headings: Sequence[str], rows: Iterable[Sequence[str]], sides: str = "<<"
    ) -> None:
        """Write a table to standard output; `sides` aligns each column, as in `aligned`.

        If all headings are empty, no heading line is written.
        """
        cells = [headings, *([escape_line(cell) for cell in row] for row in rows)]
        heading, *lines = aligned(cells, sides)
        if any(headings):
            self.report_heading(heading)
        self.report(*lines)

    def report_markdown(self, text: str) -> None:
        """Write Markdown to standard output, rendered if it is a terminal."""
        if self._output.is_terminal:
            from rich.console import Console as RichConsole  # slow to import
            from rich.markdown import Markdown

            rendered = io.StringIO()
            screen = RichConsole(file=rendered, force_terminal=self._output.has_colour)
            screen.print(Markdown(text, hyperlinks=False))
            text = rendered.getvalue().rstrip()
        self._output.write(f"{text}\n")

    def note(self, text: str, *, also_when_quiet: bool = False) -> None:
        """Write a line to standard error, dimmed if possible, unless quiet."""
        if also_when_quiet or not self.quiet:
            self._notes.write(self._notes.paragraph(text, _DIM))

    def detail(self, text: str) -> None:
        """Write a line to standard error if verbose."""
        if self.verbose:
            self.note(text)

    def reply(self, text: str) -> None:
        """Write the reply to a chat command to standard error.

        Text of several lines is not wrapped, because it may be a table.
        """
        is_line = "\n" not in text
        self._notes.write(
            self._notes.paragraph(text) if is_line else escape_controls(f"{text}\n")
        )

    def warn(self, text: str) -> None:
        """Write a line `warning: ...` to standard error."""
        self._notes.write(self._notes.paragraph(f"warning: {text}", _YELLOW))

    def error(self, text: str) -> None:
        """Write a line `error: ...` to standard error."""
        self._notes.write(self._notes.paragraph(f"error: {text}", _RED))

    def ask(self, text: str) -> None:
        """Write a question to standard error, without a newline."""
        self._notes.write(escape_line(text))


class _Output:
    """An output stream and the capabilities of its terminal."""

    def __init__(
        self, name: str, stream: TextIO | None, *, is_needed: bool = True
    ) -> None:
        self._name = name
        self._is_needed = is_needed
        self._stream = stream  # None if it was closed when the process started
        self.is_terminal = stream is not None and stream.isatty()
        self.has_colour = self.is_terminal and has_colour()
        self._raw: io.FileIO | None = None
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal's encoding lacks are shown as "?".
            stream.reconfigure(errors="replace")
            # Python's buffer is bypassed. Text that remains in it after Ctrl-C would be
            # written at exit, which could block again.
            buffer = getattr(stream.buffer, "raw", stream.buffer)
            self._raw = buffer if isinstance(buffer, io.FileIO) else None
        self._wrap: WordWrap | None = None

    @property
    def columns(self) -> int:
        """The terminal width; 0 if it is unknown or the stream is not a terminal."""
        try:
            return (
                os.get_terminal_size(self._stream.fileno()).columns if self._stream else 0
            )
        except (OSError, ValueError):
            return 0

    def write(self, text: str) -> None:
        """Write text without buffering."""
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
                    # None if another process made the descriptor non-blocking.
                    if written is None:
                        select.select([], [self._raw], [])
                    data = data[written or 0 :]
        except OSError as error:
            # Otherwise, the flush at exit would print a traceback.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if self._is_needed:
                closed = isinstance(error, BrokenPipeError)
                raise OutputError(
                    f"{self._name}: {error.strerror}", closed=closed
                ) from None

    def wrapped(self, text: str) -> str:
        """Return the next part of a text, wrapped at spaces for a terminal."""
        if not (self.is_terminal and is_capable_terminal()):
            return text
        from .wrapping import WordWrap  # not needed for a pipe

        if self._wrap is None:
            self._wrap = WordWrap()
        return self._wrap.wrapped(text, self.columns)

    def end_wrapped(self) -> None:
        """Reset word wrapping for the next text."""
        self._wrap = None

    def takes_text_now(self) -> bool:
        """Return whether a few characters can be written without blocking."""
        return self._raw is None or bool(select.select([], [self._raw], [], 0)[1])

    def line(self, text: str, style: str = "") -> str:
        """Return text as one escaped line, with a style if styles are supported."""
        return self._styled(escape_line(text), style)

    def paragraph(self, text: str, style: str = "") -> str:
        """Return a line of text, wrapped at spaces for a terminal."""
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
    """Return whether the terminal supports control sequences."""
    return os.environ.get("TERM", "") not in _PLAIN_TERMINALS


def has_colour() -> bool:
    """Return whether colour is enabled. Source: https://no-color.org."""
    return is_capable_terminal() and not os.environ.get("NO_COLOR")


def readable_seconds(seconds: float) -> str:
    """Return a duration in a readable form: `8 s`, `2 min 05 s`, `1 h 02 min`."""
    minutes, rest = divmod(max(1, round(seconds)), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return one line per row, with each column aligned left (`<`) or right (`>`)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (f"{row[i]:{sides[i]}{width}}" for i, width in enumerate(widths))
        lines.append(_GAP.join(cells).rstrip())
    return lines
