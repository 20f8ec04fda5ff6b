"""A chat as a file: JSON, which `/save` writes and `/load` reads, or Markdown for people."""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..inference import SamplingArgs, SamplingError
from ..untrusted import label_of, parse_strict_json, shown
from .errors import UsageError
from .escape import escape_controls, json_controls, replace_surrogates
from .files import read_bytes, write_whole
from .session import Turn
from .settings import Settings

FORMAT = "llama-bolts chat"
VERSION = 1
LARGEST = 1 << 23  # bytes; more text than fits the longest context of a Llama
_MARKDOWN = f"<!-- {FORMAT} -->\n"
_KEYS = ("format", "version", "model", "completion", "settings", "messages")
_SAMPLING = {field.name: field.default for field in dataclasses.fields(SamplingArgs)}
_SETTINGS = (*_SAMPLING, "max_tokens", "stop")
_MESSAGE = ("role", "content")
_JSON_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}


@dataclass(frozen=True)
class SavedChat:
    """What a file of a chat holds.

    Attributes:
        model: where the model was that answered.
        completion: whether texts were continued instead of messages answered.
        settings: of the chat.
        system: system prompt, or None.
        turns: the history.
    """

    model: str
    completion: bool
    settings: Settings
    system: str | None
    turns: tuple[Turn, ...]


def write_chat(path: Path, chat: SavedChat) -> None:
    """Write a chat to a file, which is new or holds a saved chat: `*.md` as Markdown, else JSON.

    Raises:
        UsageError: the file is something else, or cannot be written; it is as it was.
    """
    content = chat_as_markdown(chat) if is_markdown(path) else chat_as_json(chat)
    if len(content) > LARGEST:
        raise UsageError(
            f"{label_of(path)}: chat: expected at most {LARGEST} bytes, got {len(content)}"
        )
    if os.path.isfile(path) and os.path.getsize(path) and not _is_saved_chat(path):
        raise UsageError(f"{label_of(path)}: expected a new file or a saved chat, got another file")
    write_whole(path, content)


def read_chat(path: Path) -> SavedChat:
    """Read the chat in a file.

    Raises:
        UsageError: there is no such file, or it holds no chat that can be restored.
    """
    content = read_bytes(path, LARGEST)
    if content.startswith(_MARKDOWN.encode()):
        raise UsageError(f"{label_of(path)}: saved chat: expected JSON, got Markdown of /save")
    try:
        return _parse_chat(content)
    except (ValueError, SamplingError) as error:
        raise UsageError(f"{label_of(path)}: saved chat: {error}") from None


def chat_as_json(chat: SavedChat) -> bytes:
    """Return a chat as JSON in UTF-8, with control characters escaped."""
    settings = {name: getattr(chat.settings.sampling, name) for name in _SAMPLING}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": chat.model,
        "completion": chat.completion,
        "settings": settings
        | {"max_tokens": chat.settings.max_tokens, "stop": list(chat.settings.stop)},
        "messages": [{"role": role, "content": text} for role, text in _in_order(chat)],
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    return f"{json_controls(replace_surrogates(text))}\n".encode()


def is_markdown(path: Path) -> bool:
    """Return whether a chat is written to this file as Markdown."""
    return path.suffix.lower() == ".md"


def chat_as_markdown(chat: SavedChat) -> bytes:
    """Return a chat as Markdown in UTF-8, with a section per message; controls are escaped."""
    settings = ", ".join(" ".join(line.split()) for line in chat.settings.lines())
    parts = [f"# A chat\n\nModel: {chat.model}\n\nSettings: {settings}\n"]
    parts += [f"## {role.capitalize()}\n\n{text}\n" for role, text in _in_order(chat)]
    return (_MARKDOWN + escape_controls("\n".join(parts))).encode()


def _in_order(chat: SavedChat) -> Iterator[tuple[str, str]]:
    if chat.system is not None:
        yield "system", chat.system
    for turn in chat.turns:
        yield "user", turn.question
        yield "assistant", turn.answer


def _is_saved_chat(path: Path) -> bool:
    try:
        content = read_bytes(path, LARGEST)
        if is_markdown(path):
            return content.startswith(_MARKDOWN.encode())
        document = parse_strict_json(content)
    except (ValueError, UsageError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def _parse_chat(content: bytes) -> SavedChat:
    document = _object(parse_strict_json(content), "the file")
    if document.get("format") != FORMAT:
        raise ValueError(f"format: expected '{FORMAT}', got {described(document.get('format'))}")
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise ValueError(f"version: expected {VERSION}, got {described(document.get('version'))}")
    _check_keys(document, _KEYS, "keys")
    completion = document["completion"]
    if not isinstance(completion, bool):
        raise ValueError(f"completion: expected true or false, got {described(completion)}")
    messages = _messages(document["messages"])
    system = None
    if messages and messages[0][0] == "system" and not completion:
        system = messages.pop(0)[1]
    return SavedChat(
        _text(document["model"], "model"),
        completion,
        _settings(_object(document["settings"], "settings")),
        system,
        _turns(messages),
    )


def _settings(found: dict[str, object]) -> Settings:
    _check_keys(found, _SETTINGS, "settings")
    sampling = {
        # JSON may say 1 for 1.0.
        name: float(value) if type(value) is int and type(default) is float else value
        for name, default in _SAMPLING.items()
        for value in (found[name],)
    }
    most = found["max_tokens"]
    if most is not None and (type(most) is not int or most < 1):
        raise ValueError(f"max_tokens: expected null or a whole number >= 1, got {described(most)}")
    stop = [_text(text, "stop") for text in _list(found["stop"], "stop")]
    if "" in stop:
        raise ValueError("stop: expected texts of >= 1 character, got an empty one")
    return Settings(SamplingArgs(**sampling), most, tuple(stop))  # type: ignore[arg-type]


def _messages(found: object) -> list[tuple[str, str]]:
    messages = []
    for number, item in enumerate(_list(found, "messages"), 1):
        where = f"message {number}"
        fields = _object(item, where)
        _check_keys(fields, _MESSAGE, where)
        role = _text(fields["role"], f"{where}: role")
        messages.append((role, _text(fields["content"], f"{where}: content")))
    return messages


def _turns(messages: Sequence[tuple[str, str]]) -> tuple[Turn, ...]:
    """Return questions with their answers; after a system message they have to alternate."""
    for number, (role, _) in enumerate(messages, 1):
        expected = "user" if number % 2 else "assistant"
        if role != expected:
            raise ValueError(
                f"messages: expected user and assistant by turns after a system message, got "
                f"{shown(role)} in the place of {expected}"
            )
    if len(messages) % 2:
        raise ValueError("messages: expected an answer to the last question, got none")
    texts = [text for _, text in messages]
    return tuple(map(Turn, texts[::2], texts[1::2]))


def _check_keys(found: dict[str, object], expected: Sequence[str], where: str) -> None:
    for name in expected:
        if name not in found:
            raise ValueError(f"{where}: expected {name}, got none")
    for name in found:
        if name not in expected:
            raise ValueError(f"{where}: expected {', '.join(expected)}, got {shown(name)}")


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {described(value)}")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, got {described(value)}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected a text, got {described(value)}")
    return replace_surrogates(value)


def described(value: object) -> str:
    """Describe a value of a file, safe to show."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return _JSON_KINDS.get(type(value), "nothing")
