"""Downloads in the terminal: a progress line, and a question before large downloads."""

import os
import sys
import termios
import time

from ..catalog import Downloads, find_model, is_name
from ..memory import readable_bytes
from ..untrusted import escape_line
from .arguments import Options
from .console import Console, readable_seconds

_LONGEST_ANSWER = 64  # maximum number of bytes read as an answer
_SECONDS_TO_MEASURE = 1.0  # minimum time before a speed is shown


def download_named(model: str, options: Options, console: Console) -> None:
    """Download a named model unless it is already on this machine; ignore paths.

    Raises:
        CatalogError: No model has this name, or the model cannot be downloaded.
    """
    if not is_name(model):
        return
    progress = DownloadProgress(console, model)

    def allows(name: str, nbytes: int) -> bool:
        return options.yes or ask_for_consent(console, name, nbytes)

    try:
        find_model(model, Downloads(console.note, progress.show, allows))
    finally:
        console.clear_progress()


def ask_for_consent(console: Console, name: str, nbytes: int) -> bool:
    """Ask the user whether to download; without a terminal, return False."""
    if sys.stdin is None or not sys.stdin.isatty() or not console.can_edit_lines:
        return False
    console.clear_progress()
    descriptor = sys.stdin.fileno()
    # Discard text that was typed before the question.
    termios.tcflush(descriptor, termios.TCIFLUSH)
    console.ask(f"{name}: download {readable_bytes(nbytes)}? [y/N] ")
    # In a chat, the terminal does not wait for a complete line, so a single key answers.
    answer = os.read(descriptor, _LONGEST_ANSWER)
    if not answer.endswith(b"\n"):
        console.reply(escape_line(answer.decode("utf-8", "replace")))
    return answer.strip().lower() in (b"y", b"yes")


class DownloadProgress:
    """A progress line with the downloaded bytes, the speed and the remaining time."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._start: float | None = None
        self._first = 0  # number of bytes from an earlier download

    def show(self, done: int, total: int) -> None:
        """Show the number of downloaded bytes and the total."""
        now = time.monotonic()
        if self._start is None or done == self._first:  # exclude the connection time
            self._start = now
            self._first = done
        text = f"{self._name}: {readable_bytes(done)} of {readable_bytes(total)}"
        seconds = now - self._start
        if done == total:
            text = f"{self._name}: {readable_bytes(total)} downloaded, checking"
        elif seconds >= _SECONDS_TO_MEASURE and done > self._first:
            speed = (done - self._first) / seconds
            left = readable_seconds((total - done) / speed)
            text += f", {readable_bytes(round(speed))}/s, {left} left"
        self._console.show_progress(text)
