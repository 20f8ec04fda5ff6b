"""The chat in the terminal."""

import contextlib
from collections.abc import Mapping, Sequence

from ..checkpoint import CheckpointError
from ..inference import ContextFullError
from ..ml.errors import LlamaBoltsError
from .answer import INTERRUPTED
from .commands import LeaveChat, completion_words, is_command, run_command
from .console import Console
from .examples import example_lines
from .loading import is_bundled
from .reader import InterruptedLineError, MessageReader, PlainReader, unquoted
from .session import Session
from .words import NO_MEMORY_TEXT

_HOW_TO_MAKE_ROOM = "/undo and /clear make room, a start with --context-length has more"
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


def chat(session: Session, *, shows_examples: bool = False) -> None:
    """Answer messages until the user leaves or the input ends.

    A message that is refused or fails, and a command that is wrong, are one line on standard
    error; the conversation goes on as it was.

    Args:
        session: the conversation to have.
        shows_examples: begin with the predefined prompts, as `/examples` lists them.

    Raises:
        CheckpointError: the model's files were changed while they were in use.
        OutputError: standard output takes no more.
    """
    if is_bundled(session.engine.model) and not session.completion:
        for line in _BUNDLED:
            session.console.note(line)
    what = "a text to continue" if session.completion else "a message"
    session.console.note(f"Type {what}; {_HOW_TO_LEAVE}.")
    if shows_examples:
        session.console.reply("\n".join(example_lines()))
        session.console.note("/examples N asks one of them")
    reader = open_reader(session.console, completion_words())
    while True:
        # Ctrl-C may also come while one of the exceptions below is dealt with.
        with contextlib.suppress(KeyboardInterrupt):
            session.console.reply("")  # sets the prompt apart from what stands above it
            if not _take_turn_or_say_why_not(session, reader):
                return


def _take_turn_or_say_why_not(session: Session, reader: MessageReader) -> bool:
    """Take a turn, or say in a line what is wrong; return whether the chat goes on."""
    try:
        _take_turn(session, reader)
    except InterruptedLineError as interrupt:
        if interrupt.was_empty:
            session.console.reply(_HOW_TO_LEAVE)
    except KeyboardInterrupt:
        session.console.reply("")
    except EOFError:
        session.console.reply("")
        return False
    except LeaveChat:
        return False
    except CheckpointError:
        raise
    except ContextFullError as error:
        session.console.error(
            f"the message does not fit: with the conversation it takes {error.tokens} tokens, and "
            f"the context has {error.positions}; {_HOW_TO_MAKE_ROOM}"
        )
    except LlamaBoltsError as error:
        session.console.error(str(error))
    except MemoryError:  # Python's own, which has no text
        session.console.error(NO_MEMORY_TEXT)
    return True


def _take_turn(session: Session, reader: MessageReader) -> None:
    """Read one message or command and do what it asks for."""
    text, is_quoted = unquoted(reader.read())
    if not text.strip():
        return
    turns, before = session.turns, session.last
    if is_command(text) and not is_quoted:
        run_command(session, text)
    else:
        session.ask(session.with_attached(text))
    last = session.last
    if last is None or last is before:
        return
    if not last.ids and session.unanswered is not None:
        session.console.note(_NOT_BEGUN)
    elif session.turns is not turns and last.answer.stop_reason in _HINTS:
        session.console.note(_HINTS[last.answer.stop_reason])


def open_reader(console: Console, words: Mapping[str, Sequence[str] | None]) -> MessageReader:
    """Return a line editor where the terminal can show one, else a reader of plain lines.

    Args:
        console: the streams of this run; prompts go to standard error.
        words: the arguments to complete of each command, by the command; None for names of files.
    """
    if console.can_edit_lines:
        from .line_editor import LineEditor  # prompt_toolkit takes a while to load

        return LineEditor(words)
    return PlainReader(console)
