"""`/save`, `/load` and `/read`: files that hold a conversation, or a part of one."""

from ..inference import ContextFullError, InferenceError
from ..untrusted import label_of
from .errors import UsageError
from .files import named_path, read_text
from .saved_chat import SavedChat, is_markdown, read_chat, write_chat
from .session import Session
from .words import counted

_LARGEST_TEXT = 1 << 20  # bytes; more tokens than the longest context of a Llama


def save_chat(session: Session, argument: str) -> None:
    """Write the conversation and its settings to a file.

    Raises:
        UsageError: the file cannot be written, or is something else than a saved chat.
    """
    path = named_path(argument)
    model = str(session.engine.model.source_directory)
    turns = tuple(session.turns)
    write_chat(path, SavedChat(model, session.completion, session.settings, session.system, turns))
    use = " (to be read; /load needs a FILE.json)" if is_markdown(path) else ""
    session.console.reply(
        f"saved: {_answers(len(turns))} and the settings, in {label_of(path)}{use}"
    )


def load_chat(session: Session, argument: str) -> None:
    """Go on with the conversation in a file, in place of the one so far.

    Raises:
        UsageError: the file holds no conversation that this chat can take; nothing has changed.
    """
    path = named_path(argument)
    chat = read_chat(path)
    if chat.completion != session.completion:
        kinds = ("a chat", "continued texts")
        raise UsageError(
            f"{label_of(path)}: saved chat: expected {kinds[session.completion]}, got "
            f"{kinds[chat.completion]} ({'' if chat.completion else 'without '}--completion)"
        )
    try:
        session.restore(chat.system, chat.turns, chat.settings)
    except ContextFullError as error:
        raise UsageError(f"{label_of(path)}: saved chat: {_no_room(error)}") from None
    except InferenceError as error:  # a system prompt where the chat format has none
        raise UsageError(f"{label_of(path)}: saved chat: {error}") from None
    session.console.reply(
        f"loaded: {_answers(len(chat.turns))} and the settings, {len(session.history_ids())} of "
        f"{session.engine.sequence_length} tokens; system prompt: {chat.system or 'none'}"
    )


def attach_text(session: Session, argument: str) -> None:
    """Put the text of a file before the next message.

    Raises:
        UsageError: the file is not text, or too long for what is left of the context; nothing has
            changed.
    """
    path = named_path(argument)
    text = read_text(path, _LARGEST_TEXT).rstrip("\n")
    if not text.strip():
        raise UsageError(f"{label_of(path)}: text: expected some, got none")
    attached = f"{session.attached}\n\n{text}" if session.attached else text
    tokens = len(session.tokenizer.encode(attached, bos=False, eos=False))
    history = 0 if session.completion else len(session.history_ids())
    try:
        session.check_room(history + tokens)
    except ContextFullError as error:
        raise UsageError(f"{label_of(path)}: text: {_no_room(error)}") from None
    session.attached = attached
    session.console.reply(
        f"read: {counted(len(text), 'character')}; they go before your next message, "
        f"{counted(tokens, 'token')} in all"
    )


def _no_room(error: ContextFullError) -> str:
    return f"expected fewer than the {error.positions} tokens of the context, got {error.tokens}"


def _answers(count: int) -> str:
    return f"{counted(count, 'question')} with {'its answer' if count == 1 else 'their answers'}"
