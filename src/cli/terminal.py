"""Hide typing in the terminal during a chat's answers, and restore its state."""

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from .answer import on_signal
from .console import Console

# Indices in the list returned by `tcgetattr`.
_INPUT_FLAGS = 0
_LOCAL_FLAGS = 3
# As in prompt_toolkit's raw mode, which reads the queued input later. Ctrl-C and Ctrl-Z
# still send signals, and Ctrl-C does not clear the queue.
_RAW_INPUT = ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
_RAW_LOCAL = ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
_MARK_PASTES = b"\x1b[?2004h"
_LEAVE_PASTES = b"\x1b[?2004l"
_DEADLY_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class ChatTerminal:
    """The terminal on standard input and standard error during a chat."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._input = sys.stdin.fileno()
        self._output = sys.stderr.fileno()
        self._state = termios.tcgetattr(self._input)
        self._is_hidden = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the terminal on exit, even if a signal ends the process."""
        with ExitStack() as stack:
            for number in _DEADLY_SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                    stack.enter_context(on_signal(number, self._die))
            self._console.before_death = self.restore
            try:
                yield
            finally:
                self._console.before_death = lambda: None
                self._apply(self._state)

    @contextmanager
    def typing_hidden(self) -> Iterator[None]:
        """Hide typing in the `with` block; the next prompt reads it from the queue."""
        with (
            on_signal(signal.SIGTSTP, self._suspend),
            on_signal(signal.SIGCONT, self._resume),
        ):
            try:
                self._hide()
                yield
            finally:
                self._is_hidden = False
                self.restore()

    def restore(self) -> None:
        """Restore the state that the terminal had before the chat."""
        self._apply(self._state, _LEAVE_PASTES)

    def _hide(self) -> None:
        hidden = [*self._state]
        hidden[_INPUT_FLAGS] &= _RAW_INPUT
        hidden[_LOCAL_FLAGS] &= _RAW_LOCAL
        hidden[_LOCAL_FLAGS] |= termios.NOFLSH
        self._is_hidden = True
        self._apply(hidden, _MARK_PASTES)

    def _apply(self, state: list[Any], control: bytes = b"") -> None:
        """Set the state and write a control sequence, unless in the background."""
        with contextlib.suppress(OSError, termios.error):
            # The system would stop a background process that changes the terminal.
            if os.tcgetpgrp(self._input) == os.getpgrp():
                termios.tcsetattr(self._input, termios.TCSANOW, state)
                os.write(self._output, control)

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        """Stop on Ctrl-Z, with the terminal in the state that the shell expects."""
        self.restore()
        with on_signal(number, signal.SIG_DFL):
            signal.raise_signal(number)
        # This also runs if Ctrl-Z is ignored because no shell could resume the process.
        self._hide()

    def _resume(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_hidden:
            self._hide()

    def _die(self, number: int, _frame: FrameType | None) -> None:
        self.restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
