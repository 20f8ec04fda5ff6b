"""The line editor of the chat: history, completion of commands, blocks and pastes."""

import signal
import sys
from collections.abc import Iterable, Mapping, Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from .console import has_colour
from .reader import CONTINUATION, PROMPT, InterruptedLineError, block_is_open


class LineEditor:
    """Reads messages with prompt_toolkit; it draws on standard error.

    Enter sends the line, except inside an open block of triple quotes, where it starts a new one.
    A terminal marks what is pasted, so a pasted block becomes one message. The history lasts as
    long as the process.

    Args:
        words: the arguments of each command, by the command; None for names of files.
    """

    def __init__(self, words: Mapping[str, Sequence[str] | None]) -> None:
        self._session: PromptSession[str] = PromptSession(
            [("bold" if has_colour() else "", PROMPT)],
            prompt_continuation=CONTINUATION,
            multiline=Condition(lambda: block_is_open(get_app().current_buffer.text)),
            history=InMemoryHistory(),
            completer=CommandCompleter(words),
            # A menu below the line would keep eight lines free for itself and move the prompt up.
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=_without_mouse(),
            output=create_output(stdout=sys.stderr),
        )

    def read(self) -> str:
        """Read a message; see `MessageReader.read`."""
        is_pressed = False

        def press(*_: object) -> None:
            nonlocal is_pressed
            is_pressed = True
            if (loop := self._session.app.loop) is not None:
                loop.call_soon_threadsafe(self._stop)

        try:
            # prompt_toolkit's own handler loses a SIGINT that comes when the line was taken.
            before = signal.signal(signal.SIGINT, press)
            try:
                text = self._session.prompt(handle_sigint=False)
            finally:
                signal.signal(signal.SIGINT, before)
            if is_pressed:
                raise KeyboardInterrupt
            return text
        except KeyboardInterrupt:
            was_empty = not self._session.default_buffer.text.strip()
            raise InterruptedLineError(was_empty=was_empty) from None

    def _stop(self) -> None:
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(exception=KeyboardInterrupt)


def _without_mouse() -> KeyBindings:
    """Return bindings that ignore the mouse, which is not asked to report.

    A typed or pasted ESC [31m looks like a report of it to prompt_toolkit, which then fails.
    """
    bindings = KeyBindings()
    bindings.add(Keys.Vt100MouseEvent)(lambda _event: None)
    return bindings


class CommandCompleter(Completer):
    """Completes a command that starts the line, then its first argument.

    Args:
        words: the arguments of each command, by the command; None for names of files.
    """

    def __init__(self, words: Mapping[str, Sequence[str] | None]) -> None:
        self._words = words
        self._files = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Return the words that can stand at the end of the line."""
        line = document.text_before_cursor
        if not line.startswith("/"):
            return ()
        command, space, argument = line.partition(" ")
        if not space:
            names = [name if words == () else f"{name} " for name, words in self._words.items()]
            return _beginning(names, command)
        words = self._words.get(command, ())
        if words is None:
            return self._files.get_completions(Document(argument), complete_event)
        return _beginning(words, argument)


def _beginning(words: Iterable[str], typed: str) -> list[Completion]:
    """Return the words that begin with what was typed."""
    return [Completion(word, -len(typed)) for word in words if word.startswith(typed)]
