"""The line editor of the chat: history, completion of commands, blocks and pastes."""

import sys
from collections.abc import Iterator, Mapping, Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from .reader import CONTINUATION, PROMPT, InterruptedLineError, block_is_open


class LineEditor:
    """Reads messages with prompt_toolkit; it draws on standard error.

    Enter sends the line, except inside an open block of triple quotes, where it starts a new one.
    A terminal marks what is pasted, so a pasted block becomes one message. The history lasts as
    long as the process.

    Args:
        words: the arguments of each command, by the command.
    """

    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            prompt_continuation=CONTINUATION,
            multiline=Condition(lambda: block_is_open(get_app().current_buffer.text)),
            history=InMemoryHistory(),
            completer=CommandCompleter(words),
            # A menu below the line would keep eight lines free for itself and move the prompt up.
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            output=create_output(stdout=sys.stderr),
        )

    def read(self) -> str:
        """Read a message; see `MessageReader.read`."""
        try:
            return self._session.prompt()
        except KeyboardInterrupt:
            was_empty = not self._session.default_buffer.text.strip()
            raise InterruptedLineError(was_empty=was_empty) from None


class CommandCompleter(Completer):
    """Completes a command that starts the line, then its first argument.

    Args:
        words: the arguments of each command, by the command.
    """

    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self._words = words

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - the signature is prompt_toolkit's
    ) -> Iterator[Completion]:
        """Yield the words that can stand at the end of the line."""
        line = document.text_before_cursor
        if not line.startswith("/"):
            return
        command, space, argument = line.partition(" ")
        if space:
            choices, typed = list(self._words.get(command, ())), argument
        else:
            choices = [f"{name} " if words else name for name, words in self._words.items()]
            typed = command
        for choice in choices:
            if choice.startswith(typed):
                yield Completion(choice, start_position=-len(typed))
