"""The chat in the terminal, which reads messages and answers them."""

import bisect
import contextlib
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples, fragment_list_to_text
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import (
    Processor,
    Transformation,
    TransformationInput,
)
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from ..checkpoint import CheckpointError
from ..inference import ContextFullError
from ..memory import NO_MEMORY_TEXT
from ..ml.errors import LlamaBoltsError
from ..untrusted import escape_controls, escape_line, replace_surrogates
from .answer import INTERRUPTED, PrintedAnswer, on_signal
from .arguments import example_lines
from .commands import COMMANDS, is_command, run_command
from .console import Console, has_colour
from .session import Session
from .terminal import ChatTerminal

_Read = Callable[[], str | None]
_TypingHidden = Callable[[], AbstractContextManager[None]]
PROMPT = ">>> "
CONTINUATION = "... "
_QUOTES = '"""'
_MORE_ROOM = "--context-length at the start sets a larger context"
_HOW_TO_MAKE_ROOM = (
    f"/undo and /clear make room, /set overflow drop drops the oldest turns, {_MORE_ROOM}"
)
_DROPS_NEXT = "the next message drops this turn"
_DROPS = "/continue goes on without the oldest turns"
_HOW_TO_LEAVE = "Ctrl-D or /exit leaves, /help lists the commands"
_BUNDLED = (
    "It is tiny, and knows capitals, flags, small sums and how a Llama works.",
    'Try "What is the capital of Norway?", "What is 12 + 30?", "What is RoPE?"',
    "For a real conversation, type /model smollm2 (a download of 93 MB, once).",
)
# Hints printed after an incomplete answer, by stop reason.
_HINTS = {
    INTERRUPTED: "stopped; /continue goes on, /regen asks again, /undo forgets it",
    "max tokens": "/continue goes on",
    "context full": _HOW_TO_MAKE_ROOM,
}
_LOOP_HINT = "the answer repeats itself; /set repeat_penalty 1.1 makes that less likely"
_MOST_TOKENS_OF_A_ROUND = 256
_FEWEST_ROUNDS = 3
_FEWEST_REPEATED_TOKENS = 24  # fewer tokens may be a line of dashes or a refrain
_NOT_BEGUN = "stopped before the answer began; /continue asks the question again"


def chat(session: Session) -> None:
    """Answer messages until the user leaves the chat or the input ends.

    Most errors print one line and leave the conversation unchanged. Two errors end the
    chat: CheckpointError, because the model files have changed, and OutputError.
    """
    if session.engine.model.source.is_bundled and not session.completion:
        for line in _BUNDLED:
            session.console.note(line)
    wanted = "a text to continue" if session.completion else "a message"
    session.console.note(f"Type {wanted}; {_HOW_TO_LEAVE}.")
    if session.options.examples:
        session.console.reply("\n".join(example_lines()))
        session.console.note("/examples N asks one of them")
    # With mpirun, input arrives only in whole lines, so the line editor cannot be used.
    if session.console.can_edit_lines and sys.stdin.isatty():
        terminal = ChatTerminal(session.console)
        with terminal.kept():
            _run_chat(session, LineEditor().read, terminal.typing_hidden)
    else:
        _run_chat(session, partial(read_plain, session.console), contextlib.nullcontext)


def _run_chat(session: Session, read: _Read, typing_hidden: _TypingHidden) -> None:
    """Run turns until the user leaves the chat or the input ends."""
    while True:
        # Ctrl-C may also be pressed while an exception is being handled.
        with contextlib.suppress(KeyboardInterrupt):
            session.console.reply("")  # print an empty line before the prompt
            if not _run_turn(session, read, typing_hidden):
                return


def _run_turn(session: Session, read: _Read, typing_hidden: _TypingHidden) -> bool:
    """Run one turn and print its errors; return False to leave the chat."""
    typed: str | None = None
    try:
        typed = read()
        with typing_hidden():
            _answer_typed(session, typed)
    # If the typed line was complete, it is the argument of the exception.
    except KeyboardInterrupt as stopped:
        session.console.reply("")
        for typed in stopped.args:
            if typed.strip() and not is_command(typed):
                session.unanswered = session.with_attached(unquoted(typed)[0])
        if typed and session.unanswered is not None:
            session.console.note(_NOT_BEGUN)
    except EOFError:
        # After Ctrl-D, the cursor is still on the prompt's line; after /exit it is not.
        if typed is None:
            session.console.reply("")
        return False
    except CheckpointError:
        raise
    except ContextFullError as error:
        counts_turns = session.turns and session.settings.overflow != "drop"
        with_it = "with the conversation " if counts_turns else ""
        how = _HOW_TO_MAKE_ROOM if counts_turns else f"shorten it; {_MORE_ROOM}"
        if session.attached and not counts_turns:
            how = f"/clear removes the text of /read before it; {_MORE_ROOM}"
        session.console.error(f"the message does not fit: {with_it}{error.sizes}; {how}")
    except (LlamaBoltsError, MemoryError) as error:
        # Python's own MemoryError has an empty message.
        session.console.error(str(error) or NO_MEMORY_TEXT)
    return True


def _answer_typed(session: Session, typed: str | None) -> None:
    """Answer a message or run a command; None means Ctrl-C on an empty line."""
    if typed is None:
        session.console.reply(_HOW_TO_LEAVE)
        return
    text, is_quoted = unquoted(typed)
    if not text.strip():
        return
    turns = session.turns
    before = session.last
    if is_command(text) and not is_quoted:
        run_command(session, text)
    else:
        session.ask_with_attached(text)
    if (last := session.last) is None or last is before:
        return
    if not last.ids and session.unanswered is not None:
        session.console.note(_NOT_BEGUN)
    elif session.turns is not turns and last.stop_reason in _HINTS:
        session.console.note(_hint(session, last))
        if last.settings.repeat_penalty == 1.0 and ends_in_a_loop(last.ids):
            session.console.note(_LOOP_HINT)


def _hint(session: Session, last: PrintedAnswer) -> str:
    """Return a hint for an incomplete answer."""
    if last.stop_reason != "context full" or last.settings.overflow != "drop":
        return _HINTS[last.stop_reason]
    return _DROPS if len(session.turns) > 1 else _DROPS_NEXT


def ends_in_a_loop(ids: Sequence[int]) -> bool:
    """Return whether an answer ends with a passage that is repeated several times."""
    for length in range(1, _MOST_TOKENS_OF_A_ROUND + 1):
        size = max(_FEWEST_ROUNDS * length, _FEWEST_REPEATED_TOKENS)
        if size > len(ids):
            return False
        end = ids[-size:]
        if end[length:] == end[:-length]:
            return True
    return False


def read_plain(console: Console) -> str | None:
    """Read a line or a triple-quoted block; return None for Ctrl-C on an empty line."""
    text = ""
    prompt = PROMPT
    try:
        while not text or block_is_open(text):
            console.ask(prompt)
            line = sys.stdin.buffer.readline()
            if not line.endswith(b"\n"):
                # An incomplete line at the end of the input is discarded.
                raise EOFError
            text += line.decode("utf-8", "replace").replace("\r\n", "\n")
            prompt = CONTINUATION
    except KeyboardInterrupt:
        console.reply("")  # move to a new line after the typed text
        return "" if text else None
    return text.rstrip("\n")


def block_is_open(text: str) -> bool:
    """Return whether text begins with triple quotes that have not been closed."""
    stripped = text.strip()
    is_closed = len(stripped) >= 2 * len(_QUOTES) and stripped.endswith(_QUOTES)
    return stripped.startswith(_QUOTES) and not is_closed


def unquoted(text: str) -> tuple[str, bool]:
    """Return the typed message without triple quotes, and whether it was quoted."""
    text = replace_surrogates(text)
    stripped = text.strip()
    if stripped.startswith(_QUOTES) and not block_is_open(text):
        return stripped[len(_QUOTES) : -len(_QUOTES)].strip("\n"), True
    return text, False


class LineEditor:
    """Reads messages with prompt_toolkit on standard error. A paste is one message."""

    def __init__(self) -> None:
        # A typed or pasted ESC [31m looks like a mouse report, and prompt_toolkit fails
        # without a binding for it.
        bindings = KeyBindings()
        bindings.add(Keys.Vt100MouseEvent)(lambda _event: None)
        self._session: PromptSession[str] = PromptSession(
            [("bold" if has_colour() else "", PROMPT)],
            prompt_continuation=CONTINUATION,
            multiline=Condition(lambda: block_is_open(get_app().current_buffer.text)),
            completer=CommandCompleter(),
            input_processors=[EscapeControls()],
            # A menu below the line would reserve eight rows and move the prompt up.
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=bindings,
            output=create_output(stdout=sys.stderr),
        )

    def read(self) -> str | None:
        """Read a message as `read_plain` does.

        If the line was complete, it is the argument of the KeyboardInterrupt.
        """
        is_pressed = False

        def press(*_: object) -> None:
            nonlocal is_pressed
            is_pressed = True
            if (loop := self._session.app.loop) is not None:
                loop.call_soon_threadsafe(self._stop)

        try:
            # prompt_toolkit's own handler would lose a SIGINT that arrives after the line
            # is complete.
            with on_signal(signal.SIGINT, press):
                text = self._session.prompt(handle_sigint=False)
        except KeyboardInterrupt:
            return "" if self._session.default_buffer.text.strip() else None
        # The keys that were pressed while the editor was closing.
        keys = get_typeahead(self._session.input)
        if is_pressed or any(each.key == Keys.ControlC for each in keys):
            raise KeyboardInterrupt(text)
        store_typeahead(self._session.input, keys)
        return text

    def _stop(self) -> None:
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(exception=KeyboardInterrupt)


class EscapeControls(Processor):
    """Shows control characters in the input line as escapes such as `\\x9b`.

    Completed file names and pasted text may contain characters that control the terminal.
    The text itself is not changed.
    """

    def apply_transformation(
        self, transformation_input: TransformationInput
    ) -> Transformation:
        """Return the line to draw, and mappings between its positions and the text's."""
        fragments = transformation_input.fragments
        text = fragment_list_to_text(fragments)
        if escape_controls(text) == text:
            return Transformation(fragments)
        drawn: StyleAndTextTuples = []
        places = [0]  # the drawn position of each character in the text
        for style, part, *_ in fragments:
            for character in part:
                escaped = escape_controls(character)
                drawn.append((style, escaped))
                places.append(places[-1] + len(escaped))

        def to_display(place: int) -> int:
            return places[min(place, len(text))] + max(0, place - len(text))

        def to_source(place: int) -> int:
            return bisect.bisect_right(places, place) - 1

        return Transformation(drawn, to_display, to_source)


class CommandCompleter(Completer):
    """Completes a command at the beginning of the line, and its first argument."""

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield the possible completions of the text before the cursor."""
        name, space, typed = document.text_before_cursor.partition(" ")
        words: Collection[str] | None = ()
        if space and name in COMMANDS:
            choices = COMMANDS[name].words
            words = choices() if callable(choices) else choices
            if callable(choices) and typed.startswith(
                (".", "/", "~")
            ):  # a path instead of a name
                words = None
        elif name and not space:
            words = [f"{name} " if c.usage else name for name, c in COMMANDS.items()]
            typed = name
        if words is None:
            files = PathCompleter(expanduser=True).get_completions(
                Document(typed), complete_event
            )
            return [
                Completion(file.text, file.start_position, escape_line(file.display_text))
                for file in files
            ]
        return [
            Completion(word, -len(typed), escape_line(word))
            for word in words
            if word.startswith(typed)
        ]
