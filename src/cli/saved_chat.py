"""`/save`, `/load` and `/read`: save chats as JSON, and attach text files."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..inference import InferenceError, as_messages
from ..inference.answer import StopStrings
from ..sampling_steps import STEPS
from ..untrusted import (
    JSON_KINDS,
    described,
    json_controls,
    label_of,
    parse_strict_json,
    read_whole,
    replace_surrogates,
    some_of,
    write_whole,
)
from .answer import SETTINGS, Settings, counted
from .console import UsageError, usage_errors
from .session import Session, Turn, messages_of

_FORMAT = "llama-bolts chat"
_VERSION = 1
# Maximum size of a saved chat and of an attached text, in bytes. Both sizes exceed the
# longest context of a Llama model.
LARGEST = 1 << 23
_LARGEST_TEXT = 1 << 20
# Settings that do not exist in chats saved by version 0.1.0.
_ADDED = {name: step.off for name, step in STEPS.items() if step.is_new}
_SETTINGS = [name for name in SETTINGS if name not in ("think", "overflow")]
_KEYS = {
    "format": str,
    "version": int,
    "model": str,
    "completion": bool,
    "settings": dict,
    "messages": list,
}


def save_chat(session: Session, argument: str) -> str:
    """Save the conversation and its settings to a file; return the reply."""
    path = typed_path("/save", argument)
    model = str(session.engine.model.source_directory)
    turns = tuple(session.turns)
    write_chat(
        path,
        SavedChat(model, session.completion, session.settings, session.system, turns),
    )
    return f"saved: {counted(len(turns), 'answer')} and the settings, in {label_of(path)}"


def load_chat(session: Session, argument: str) -> str:
    """Replace the conversation with a saved chat; return the reply."""
    path = typed_path("/load", argument)
    chat = read_chat(path)
    if chat.completion != session.completion:
        kinds = ("a chat (without --completion)", "continued texts (--completion)")
        expected = kinds[session.completion]
        got = kinds[chat.completion]
        raise _file_error(path, f"saved chat: expected {expected}, got {got}")
    try:
        session.restore(chat.system, chat.turns, chat.settings)
    # The chat does not fit, or the chat format does not support a system prompt.
    except InferenceError as error:
        raise _file_error(path, f"saved chat: {error}") from None
    return (
        f"loaded: {counted(len(chat.turns), 'answer')} and the settings, "
        f"{len(session.history_ids())} of {session.engine.sequence_length} tokens; "
        f"system prompt: {chat.system or 'none'}"
    )


def attach_text(session: Session, argument: str) -> str:
    """Attach the text of a file to the next message; return the reply.

    Text that does not fit into the context raises UsageError.
    """
    path = typed_path("/read", argument)
    text = read_text(path, _LARGEST_TEXT).rstrip("\n")
    if not text.strip():
        raise _file_error(path, "text: expected text, got an empty text")
    attached = f"{session.attached}\n\n{text}" if session.attached else text
    tokens = len(session.tokenizer.encode(attached, bos=False, eos=False))
    has_turns = not (session.completion or session.settings.overflow == "drop")
    needed = tokens + (len(session.history_ids()) if has_turns else 0)
    if needed >= (positions := session.engine.sequence_length):
        expected = f"fewer than the {positions} tokens of the context"
        raise _file_error(path, f"text: expected {expected}, got {needed}")
    session.attached = attached
    return (
        f"read: {counted(len(text), 'character')} before your next message, "
        f"{counted(tokens, 'token')} in total"
    )


def _file_error(path: Path, text: str) -> UsageError:
    return UsageError(f"{label_of(path)}: {text}")


@dataclass(frozen=True)
class SavedChat:
    """The contents of a saved chat."""

    model: str  # the path of the model
    completion: bool  # whether the model continues texts instead of answering messages
    settings: Settings
    system: str | None
    turns: tuple[Turn, ...]


def write_chat(path: Path, chat: SavedChat) -> None:
    """Write a chat to a new file, or overwrite a saved chat.

    The file is unchanged if UsageError is raised.
    """
    content = chat_as_json(chat)
    if len(content) > LARGEST:  # possible after many long completions
        raise _file_error(
            path, f"saved chat: expected at most {LARGEST} bytes, got {len(content)}"
        )
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            read_chat(path)
        except UsageError:
            raise _file_error(
                path, "saved chat: expected it or a new file, got another file"
            ) from None
    write_whole(path, [content], UsageError)


def read_chat(path: Path) -> SavedChat:
    """Read a saved chat; raise UsageError if it cannot be restored."""
    content = read_whole(path, LARGEST, UsageError)
    try:
        return _parse_chat(content)
    except (ValueError, InferenceError) as error:
        raise _file_error(path, f"saved chat: {error}") from None


def chat_as_json(chat: SavedChat) -> bytes:
    """Return a chat as JSON in UTF-8, with control characters escaped."""
    messages = messages_of(chat.system, chat.turns)
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": chat.model,
        "completion": chat.completion,
        "settings": {name: getattr(chat.settings, name) for name in _SETTINGS},
        "messages": [{"role": each.role, "content": each.content} for each in messages],
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    return f"{json_controls(replace_surrogates(text))}\n".encode()


def _parse_chat(content: bytes) -> SavedChat:
    document: Any = parse_strict_json(content)
    _check(document, dict, "the file")
    for name, expected in (("format", _FORMAT), ("version", _VERSION)):
        actual = document.get(name)
        if type(actual) is not type(expected) or actual != expected:
            raise ValueError(
                f"{name}: expected {described(expected)}, got {described(actual)}"
            )
    _check_keys(document, _KEYS, "keys")
    for name, kind in _KEYS.items():
        _check(document[name], kind, name)
    settings = _ADDED | document["settings"]
    _check_keys(settings, _SETTINGS, "settings")
    max_tokens = settings["max_tokens"]
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise ValueError(
            "max_tokens: expected null or a whole number >= 1, got "
            f"{described(max_tokens)}"
        )
    _check(settings["stop"], list, "stop")
    StopStrings(settings["stop"])  # checks each string
    return SavedChat(
        document["model"],
        document["completion"],
        Settings(**settings | {"stop": tuple(settings["stop"])}),
        *_conversation(document["messages"], document["completion"]),
    )


def _conversation(
    entries: list[Any], completion: bool
) -> tuple[str | None, tuple[Turn, ...]]:
    """Return the system message, or None, and the turns of a saved chat."""
    messages = as_messages(entries) if entries else []
    system = None
    if messages and messages[0].role == "system" and not completion:
        system = replace_surrogates(messages.pop(0).content)
    roles = [message.role for message in messages]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        expected = "user and assistant alternately, with an answer at the end"
        raise ValueError(f"messages: expected {expected}, got {some_of(roles)}")
    texts = [replace_surrogates(message.content) for message in messages]
    return system, tuple(map(Turn, texts[::2], texts[1::2]))


def _check_keys(
    values: Mapping[str, object], expected: Collection[str], where: str
) -> None:
    if wrong := values.keys() ^ {*expected}:
        problem = f"missing or unknown keys {some_of(sorted(wrong))}"
        raise ValueError(f"{where}: expected {', '.join(expected)}, got {problem}")


def _check(value: object, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where}: expected {JSON_KINDS[kind]}, got {described(value)}")


def typed_path(command: str, argument: str) -> Path:
    """Return the path typed by the user, without quotes and with `~` expanded."""
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in ("'", '"'):
        argument = argument[1:-1]
    if not argument:
        raise UsageError(f"usage: {command} FILE: got nothing")
    return Path(os.path.expanduser(argument))


def read_text(path: Path, limit: int) -> str:
    """Read UTF-8 text of at most `limit` bytes and remove a byte order mark."""
    content = read_whole(path, limit, UsageError)
    with usage_errors(f"{label_of(path)}: text: expected UTF-8"):
        text = content.decode("utf-8-sig")
    if "\0" in text:
        raise _file_error(
            path, f"text: expected text, got a zero at byte {content.index(0)}"
        )
    return text
