"""The chat in the terminal: what is typed is read, and each message answered."""

import contextlib
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from ..checkpoint import CheckpointError
from ..inference import ContextFullError
from ..memory import NO_MEMORY_TEXT
from ..ml.errors import LlamaBoltsError
from ..untrusted import replace_surrogates
from .answer import INTERRUPTED, on_signal
from .arguments import example_lines
from .commands import COMMANDS, is_command, run_command
from .console import Console, has_colour
from .session import Session

PROMPT = ">>> "
CONTINUATION = "... "
_QUOTES = '"""'
_MORE_ROOM = "a start with --context-length has more"
_HOW_TO_MAKE_ROOM = f"/undo and /clear make room, {_MORE_ROOM}"
_HOW_TO_LEAVE = "Ctrl-D or /exit leaves, /help lists the commands"
_BUNDLED = (
    "It is tiny, and knows capitals, flags, small sums and how a Llama works.",
    'Try "What is the capital of Norway?", "What is 12 + 30?", "What is RoPE?"',
    "To chat with a model of your own, start with -m DIRECTORY.",
)
# What to do after an answer that stopped before its end.
_HINTS = {
    INTERRUPTED: "stopped; /continue goes on, /regen asks again, /undo forgets it",
    "max tokens": "/continue goes on",
    "context full": _HOW_TO_MAKE_ROOM,
}
_NOT_BEGUN = "stopped before the answer began; /continue asks the question again"


def chat(session: Session) -> None:
    """Answer messages until the user leaves or the input ends, after the examples if wanted.

    What is refused, fails or is wrong is one line, and the conversation goes on as it was, but not
    after a CheckpointError (the model's files were changed) or an OutputError.
    """
    if session.engine.model.files.is_bundled and not session.completion:
        for line in _BUNDLED:
            session.console.note(line)
    what = "a text to continue" if session.completion else "a message"
    session.console.note(f"Type {what}; {_HOW_TO_LEAVE}.")
    if session.options.examples:
        session.console.reply("\n".join(example_lines()))
        session.console.note("/examples N asks one of them")
    can_edit = session.console.can_edit_lines and sys.stdin.isatty()  # mpirun passes on lines
    read = LineEditor().read if can_edit else partial(read_plain, session.console)
    while True:
        # Ctrl-C may also come while one of the exceptions below is dealt with.
        with contextlib.suppress(KeyboardInterrupt):
            session.console.reply("")  # sets the prompt apart from what stands above it
            if not _take_turn_or_say_why_not(session, read):
                return


def _take_turn_or_say_why_not(session: Session, read: Callable[[], str | None]) -> bool:
    """Take a turn, or say in a line what is wrong; return whether the chat goes on."""
    typed: str | None = None
    try:
        typed = read()
        _take_turn(session, typed)
    except KeyboardInterrupt as stopped:  # with the line that was taken by then, if it was read
        session.console.reply("")
        for typed in stopped.args:
            if typed.strip() and not is_command(typed):
                session.unanswered = session.with_attached(unquoted(typed)[0])
        if typed and session.unanswered is not None:
            session.console.note(_NOT_BEGUN)
    except EOFError:
        if typed is None:  # Ctrl-D, which leaves the cursor behind the prompt, and no /exit
            session.console.reply("")
        return False
    except CheckpointError:
        raise
    except ContextFullError as error:
        with_it = "with the conversation " if session.turns else ""
        how = _HOW_TO_MAKE_ROOM if session.turns else f"shorten it; {_MORE_ROOM}"
        session.console.error(
            f"the message does not fit: {with_it}it takes {error.tokens} tokens, and the context "
            f"has {error.positions}; {how}"
        )
    except (LlamaBoltsError, MemoryError) as error:
        session.console.error(str(error) or NO_MEMORY_TEXT)  # Python's own error has no text
    return True


def _take_turn(session: Session, typed: str | None) -> None:
    """Do what a message or a command asks for; None is Ctrl-C where nothing was typed."""
    if typed is None:
        session.console.reply(_HOW_TO_LEAVE)
        return
    text, is_quoted = unquoted(typed)
    if not text.strip():
        return
    turns, before = session.turns, session.last
    if is_command(text) and not is_quoted:
        run_command(session, text)
    else:
        session.ask(session.with_attached(text))
    if (last := session.last) is None or last is before:
        return
    if not last.ids and session.unanswered is not None:
        session.console.note(_NOT_BEGUN)
    elif session.turns is not turns and last.stop_reason in _HINTS:
        session.console.note(_HINTS[last.stop_reason])


def read_plain(console: Console) -> str | None:
    """Read a line or a block with its triple quotes; None is Ctrl-C where nothing was typed."""
    text, prompt = "", PROMPT
    try:
        while not text or block_is_open(text):
            console.ask(prompt)
            line = sys.stdin.buffer.readline()
            if not line.endswith(b"\n"):
                raise EOFError  # also after a part of a line: nobody said that it was finished
            text += line.decode("utf-8", "replace").replace("\r\n", "\n")
            prompt = CONTINUATION
    except KeyboardInterrupt:
        console.reply("")  # what was typed stands before it
        return "" if text else None
    return text.rstrip("\n")


def block_is_open(text: str) -> bool:
    """Return whether text starts with triple quotes that are not closed at its end."""
    stripped = text.strip()
    is_closed = len(stripped) >= 2 * len(_QUOTES) and stripped.endswith(_QUOTES)
    return stripped.startswith(_QUOTES) and not is_closed


def unquoted(text: str) -> tuple[str, bool]:
    """Return the message in what was typed, and whether it stood between triple quotes."""
    text = replace_surrogates(text)
    stripped = text.strip()
    if stripped.startswith(_QUOTES) and not block_is_open(text):
        return stripped[len(_QUOTES) : -len(_QUOTES)].strip("\n"), True
    return text, False


class LineEditor:
    """Reads messages with prompt_toolkit, on standard error; what is pasted is one message."""

    def __init__(self) -> None:
        # A typed or pasted ESC [31m looks like a report of the mouse, which is not asked for any,
        # and without a binding prompt_toolkit fails.
        bindings = KeyBindings()
        bindings.add(Keys.Vt100MouseEvent)(lambda _event: None)
        self._session: PromptSession[str] = PromptSession(
            [("bold" if has_colour() else "", PROMPT)],
            prompt_continuation=CONTINUATION,
            multiline=Condition(lambda: block_is_open(get_app().current_buffer.text)),
            completer=CommandCompleter(),
            # A menu below the line would keep eight lines free for itself and move the prompt up.
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=bindings,
            output=create_output(stdout=sys.stderr),
        )

    def read(self) -> str | None:
        """Read a message as `read_plain` does; KeyboardInterrupt tells a line that was taken."""
        is_pressed = False

        def press(*_: object) -> None:
            nonlocal is_pressed
            is_pressed = True
            if (loop := self._session.app.loop) is not None:
                loop.call_soon_threadsafe(self._stop)

        try:
            # prompt_toolkit's own handler loses a SIGINT that comes when the line was taken.
            with on_signal(signal.SIGINT, press):
                text = self._session.prompt(handle_sigint=False)
        except KeyboardInterrupt:
            return "" if self._session.default_buffer.text.strip() else None
        keys = get_typeahead(self._session.input)  # read while the editor ended
        if is_pressed or any(one.key == Keys.ControlC for one in keys):
            raise KeyboardInterrupt(text)
        store_typeahead(self._session.input, keys)
        return text

    def _stop(self) -> None:
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(exception=KeyboardInterrupt)


class CommandCompleter(Completer):
    """Completes a command that starts the line, then its first argument."""

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Return the words that can stand at the end of the line."""
        name, space, typed = document.text_before_cursor.partition(" ")
        words: Collection[str] | None = ()
        if space and name in COMMANDS:
            words = COMMANDS[name].words
        elif name and not space:
            words = [f"{name} " if c.usage else name for name, c in COMMANDS.items()]
            typed = name
        if words is None:
            files = PathCompleter(expanduser=True)
            return files.get_completions(Document(typed), complete_event)
        return [Completion(word, -len(typed)) for word in words if word.startswith(typed)]
