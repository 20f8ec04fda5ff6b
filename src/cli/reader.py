"""Reading messages from the terminal: one line, a block between triple quotes, or a paste."""

import signal
import sys
from types import FrameType
from typing import Protocol

from .console import Console
from .escape import replace_surrogates

PROMPT = ">>> "
CONTINUATION = "... "
_QUOTES = '"""'


class MessageReader(Protocol):
    """Where the messages of a chat come from."""

    def read(self) -> str:
        """Read a message as it was typed, triple quotes included.

        Raises:
            EOFError: Ctrl-D, or the end of the input.
            InterruptedLineError: Ctrl-C.
        """


class InterruptedLineError(Exception):
    """Ctrl-C while a message was typed.

    Attributes:
        was_empty: nothing had been typed yet.
    """

    def __init__(self, *, was_empty: bool) -> None:
        super().__init__()
        self.was_empty = was_empty


class PlainReader:
    """Reads lines that the terminal itself lets edit."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def read(self) -> str:
        """Read a line, or the lines of an open block."""
        text = ""
        try:
            text = self._line(PROMPT)
            while block_is_open(text):
                text += "\n" + self._line(CONTINUATION)
        except KeyboardInterrupt:
            self._console.reply("")  # what was typed stands before it
            raise InterruptedLineError(was_empty=not text) from None
        return text

    def _line(self, prompt: str) -> str:
        self._console.ask(prompt)

        def suspend(number: int, _frame: FrameType | None) -> None:
            """Stop as by Ctrl-Z, and show the prompt again; what was typed the terminal drops."""
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            signal.signal(number, suspend)
            self._console.ask(prompt)

        before = signal.signal(signal.SIGTSTP, suspend)
        try:
            line = sys.stdin.buffer.readline()
        finally:
            signal.signal(signal.SIGTSTP, before)
        if not line.endswith(b"\n"):
            raise EOFError  # also after a part of a line: nobody said that it was finished
        return decode_input(line).rstrip("\r\n")


def decode_input(data: bytes) -> str:
    """Return bytes of an input as text; what is not UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", errors="replace")


def block_is_open(text: str) -> bool:
    """Return whether text starts with triple quotes that are not closed at its end."""
    stripped = text.strip()
    if not stripped.startswith(_QUOTES):
        return False
    return len(stripped) < 2 * len(_QUOTES) or not stripped.endswith(_QUOTES)


def unquoted(text: str) -> tuple[str, bool]:
    """Return the message in what was typed, and whether it stood between triple quotes."""
    text = replace_surrogates(text)
    stripped = text.strip()
    if stripped.startswith(_QUOTES) and not block_is_open(text):
        return stripped[len(_QUOTES) : -len(_QUOTES)].strip("\n"), True
    return text, False
