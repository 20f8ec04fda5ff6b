"""The chat in the terminal."""

from .. import __version__
from ..checkpoint import CheckpointError
from ..ml.errors import LlamaBoltsError
from .commands import LeaveChat, completion_words, is_command, run_command
from .reader import InterruptedLineError, MessageReader, open_reader, unquoted
from .session import Session

_HOW_TO_LEAVE = "Ctrl-D or /exit leaves, /help lists the commands"


def chat(session: Session) -> None:
    """Answer messages until the user leaves or the input ends.

    A message that is refused or fails, and a command that is wrong, are one line on standard
    error; the conversation goes on as it was.

    Args:
        session: the conversation to have.

    Raises:
        CheckpointError: the model's files were changed while they were in use.
        OutputError: standard output or standard error takes no more.
    """
    what = "text to continue" if session.completion else "message"
    session.console.note(f"llama-bolts {__version__}: type a {what}; {_HOW_TO_LEAVE}")
    reader = open_reader(session.console, completion_words())
    while True:
        try:
            _take_turn(session, reader)
        except InterruptedLineError as interrupt:
            session.console.reply(_HOW_TO_LEAVE if interrupt.was_empty else "")
        except KeyboardInterrupt:
            session.console.reply("")
        except EOFError:
            session.console.reply("")
            return
        except LeaveChat:
            return
        except CheckpointError:
            raise
        except LlamaBoltsError as error:
            session.console.error(str(error))


def _take_turn(session: Session, reader: MessageReader) -> None:
    """Read one message or command and do what it asks for."""
    text, is_quoted = unquoted(reader.read())
    if not text.strip():
        return
    if is_command(text) and not is_quoted:
        run_command(session, text)
        return
    session.ask(text)
