"""`/save`, `/load` and `/read`: a chat as JSON, and texts that go into one."""

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
from .console import UsageError, refused
from .session import Session, Turn, messages_of

_FORMAT = "llama-bolts chat"
_VERSION = 1
LARGEST = 1 << 23  # bytes of a chat; more text than fits the longest context of a Llama
_LARGEST_TEXT = 1 << 20  # bytes; more tokens than the longest context of a Llama
# Settings that chats of version 0.1.0 lack.
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
    """Write the conversation and its settings to a file, and say so."""
    path = named_path(argument)
    model = str(session.engine.model.source_directory)
    turns = tuple(session.turns)
    write_chat(
        path,
        SavedChat(model, session.completion, session.settings, session.system, turns),
    )
    return f"saved: {counted(len(turns), 'answer')} and the settings, in {label_of(path)}"


def load_chat(session: Session, argument: str) -> str:
    """Go on with the conversation in a file, in place of the one so far, and say so."""
    path = named_path(argument)
    chat = read_chat(path)
    if chat.completion != session.completion:
        kinds = ("a chat (without --completion)", "continued texts (--completion)")
        expected = kinds[session.completion]
        got = kinds[chat.completion]
        raise _wrong(path, f"saved chat: expected {expected}, got {got}")
    try:
        session.restore(chat.system, chat.turns, chat.settings)
    except (
        InferenceError
    ) as error:  # no room, or a system prompt where the format has none
        raise _wrong(path, f"saved chat: {error}") from None
    return (
        f"loaded: {counted(len(chat.turns), 'answer')} and the settings, "
        f"{len(session.history_ids())} of {session.engine.sequence_length} tokens; "
        f"system prompt: {chat.system or 'none'}"
    )


def attach_text(session: Session, argument: str) -> str:
    """Put the text of a file, if it fits the context, before the next message, and say
    so.
    """
    path = named_path(argument)
    text = read_text(path, _LARGEST_TEXT).rstrip("\n")
    if not text.strip():
        raise _wrong(path, "text: expected some, got none")
    attached = f"{session.attached}\n\n{text}" if session.attached else text
    tokens = len(session.tokenizer.encode(attached, bos=False, eos=False))
    has_turns = not (session.completion or session.settings.overflow == "drop")
    needed = tokens + (len(session.history_ids()) if has_turns else 0)
    if needed >= (positions := session.engine.sequence_length):
        rule = f"expected fewer than the {positions} tokens of the context"
        raise _wrong(path, f"text: {rule}, got {needed}")
    session.attached = attached
    return (
        f"read: {counted(len(text), 'character')}; they go before your next message, "
        f"{counted(tokens, 'token')} in all"
    )


def _wrong(path: Path, text: str) -> UsageError:
    return UsageError(f"{label_of(path)}: {text}")


@dataclass(frozen=True)
class SavedChat:
    """What a file of a chat holds."""

    model: str  # where the model was that answered
    completion: bool  # whether texts were continued instead of messages answered
    settings: Settings
    system: str | None
    turns: tuple[Turn, ...]


def write_chat(path: Path, chat: SavedChat) -> None:
    """Write a chat to a file that is new or holds one; after a UsageError it is as it
    was.
    """
    content = chat_as_json(chat)
    if len(content) > LARGEST:  # long texts that were continued one after another
        raise _wrong(path, f"chat: expected at most {LARGEST} bytes, got {len(content)}")
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            read_chat(path)
        except UsageError:
            raise _wrong(
                path, "expected a new file or a saved chat, got another file"
            ) from None
    write_whole(path, [content], UsageError)


def read_chat(path: Path) -> SavedChat:
    """Read the chat in a file; raise UsageError where there is none that can be
    restored.
    """
    content = read_whole(path, LARGEST, UsageError)
    try:
        return _parse_chat(content)
    except (ValueError, InferenceError) as error:
        raise _wrong(path, f"saved chat: {error}") from None


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
        got = document.get(name)
        if type(got) is not type(expected) or got != expected:
            raise ValueError(
                f"{name}: expected {described(expected)}, got {described(got)}"
            )
    _check_keys(document, _KEYS, "keys")
    for name, kind in _KEYS.items():
        _check(document[name], kind, name)
    settings = _ADDED | document["settings"]
    _check_keys(settings, _SETTINGS, "settings")
    most = settings["max_tokens"]
    if most is not None and (type(most) is not int or most < 1):
        raise ValueError(
            f"max_tokens: expected null or a whole number >= 1, got {described(most)}"
        )
    _check(settings["stop"], list, "stop")
    StopStrings(settings["stop"])  # which checks each
    return SavedChat(
        document["model"],
        document["completion"],
        Settings(**settings | {"stop": tuple(settings["stop"])}),
        *_conversation(document["messages"], document["completion"]),
    )


def _conversation(
    found: list[Any], completion: bool
) -> tuple[str | None, tuple[Turn, ...]]:
    """Return the system message of a chat, if it has one, and questions with their
    answers.
    """
    messages = as_messages(found) if found else []
    system = None
    if messages and messages[0].role == "system" and not completion:
        system = replace_surrogates(messages.pop(0).content)
    roles = [message.role for message in messages]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        rule = "user and assistant by turns after a system message, an answer at the end"
        raise ValueError(f"messages: expected {rule}, got {some_of(roles)}")
    texts = [replace_surrogates(message.content) for message in messages]
    return system, tuple(map(Turn, texts[::2], texts[1::2]))


def _check_keys(
    found: Mapping[str, object], expected: Collection[str], where: str
) -> None:
    if wrong := found.keys() ^ {*expected}:
        got = f"missing or unknown ones: {some_of(sorted(wrong))}"
        raise ValueError(f"{where}: expected {', '.join(expected)}, got {got}")


def _check(value: object, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where}: expected {JSON_KINDS[kind]}, got {described(value)}")


def named_path(argument: str) -> Path:
    """Return the path that was typed: `~` is the home directory, quotes around it are
    dropped.
    """
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in ("'", '"'):
        argument = argument[1:-1]
    if not argument:
        raise UsageError("a name of a file is wanted: got nothing")
    return Path(os.path.expanduser(argument))


def read_text(path: Path, limit: int) -> str:
    """Read a file of at most `limit` bytes of UTF-8 text, without the mark of its byte
    order.
    """
    content = read_whole(path, limit, UsageError)
    with refused(f"{label_of(path)}: text: expected UTF-8"):
        text = content.decode("utf-8-sig")
    if "\0" in text:
        raise _wrong(path, f"text: expected text, got a zero at byte {content.index(0)}")
    return text
