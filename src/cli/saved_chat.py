"""`/save`, `/load` and `/read`: a chat as JSON or Markdown, and texts that go into one."""

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..inference import ContextFullError, InferenceError, SamplingArgs, SamplingError
from ..untrusted import (
    JSON_KINDS,
    described,
    escape_controls,
    json_controls,
    label_of,
    parse_strict_json,
    read_whole,
    replace_surrogates,
    shown,
    write_whole,
)
from .answer import SAMPLING, Settings, counted
from .console import UsageError
from .session import Session, Turn

_FORMAT = "llama-bolts chat"
_VERSION = 1
LARGEST = 1 << 23  # bytes of a chat; more text than fits the longest context of a Llama
_LARGEST_TEXT = 1 << 20  # bytes; more tokens than the longest context of a Llama
_MARKDOWN = f"<!-- {_FORMAT} -->\n"
# Settings that chats of version 0.1.0 lack.
_ADDED: dict[str, object] = {"frequency_penalty": 0.0, "presence_penalty": 0.0}
_KEYS = ("format", "version", "model", "completion", "settings", "messages")
_Kind = TypeVar("_Kind")


def save_chat(session: Session, argument: str) -> None:
    """Write the conversation and its settings to a file.

    Raises:
        UsageError: The file cannot be written, or is something else than a saved chat.
    """
    path = named_path(argument)
    model = str(session.engine.model.source_directory)
    turns = tuple(session.turns)
    write_chat(path, SavedChat(model, session.completion, session.settings, session.system, turns))
    uses = {".json": "", ".md": " (to be read; /load needs a FILE.json)"}
    use = uses.get(path.suffix.lower(), " (as JSON, which /load reads)")
    session.console.reply(
        f"saved: {_answers(len(turns))} and the settings, in {label_of(path)}{use}"
    )


def load_chat(session: Session, argument: str) -> None:
    """Go on with the conversation in a file, in place of the one so far.

    Raises:
        UsageError: The file holds no conversation that this chat can take; nothing has changed.
    """
    path = named_path(argument)
    chat = read_chat(path)
    if chat.completion != session.completion:
        kinds = ("a chat", "continued texts")
        got = f"{kinds[chat.completion]} ({'' if chat.completion else 'without '}--completion)"
        raise _wrong(path, f"saved chat: expected {kinds[session.completion]}, got {got}")
    try:
        session.restore(chat.system, chat.turns, chat.settings)
    except InferenceError as error:  # no room, or a system prompt where the format has none
        reason = _no_room(error) if isinstance(error, ContextFullError) else error
        raise _wrong(path, f"saved chat: {reason}") from None
    session.console.reply(
        f"loaded: {_answers(len(chat.turns))} and the settings, {len(session.history_ids())} of "
        f"{session.engine.sequence_length} tokens; system prompt: {chat.system or 'none'}"
    )


def attach_text(session: Session, argument: str) -> None:
    """Put the text of a file before the next message.

    Raises:
        UsageError: The file is not text, or too long for what is left of the context; nothing has
            changed.
    """
    path = named_path(argument)
    text = read_text(path, _LARGEST_TEXT).rstrip("\n")
    if not text.strip():
        raise _wrong(path, "text: expected some, got none")
    attached = f"{session.attached}\n\n{text}" if session.attached else text
    tokens = len(session.tokenizer.encode(attached, bos=False, eos=False))
    history = 0 if session.completion else len(session.history_ids())
    try:
        session.check_room(history + tokens)
    except ContextFullError as error:
        raise _wrong(path, f"text: {_no_room(error)}") from None
    session.attached = attached
    session.console.reply(
        f"read: {counted(len(text), 'character')}; they go before your next message, "
        f"{counted(tokens, 'token')} in all"
    )


def _wrong(path: Path, text: str) -> UsageError:
    return UsageError(f"{label_of(path)}: {text}")


def _no_room(error: ContextFullError) -> str:
    return f"expected fewer than the {error.positions} tokens of the context, got {error.tokens}"


def _answers(count: int) -> str:
    return f"{counted(count, 'question')} with {'its answer' if count == 1 else 'their answers'}"


@dataclass(frozen=True)
class SavedChat:
    """What a file of a chat holds.

    Attributes:
        model: Where the model was that answered.
        completion: Whether texts were continued instead of messages answered.
        settings: Of the chat.
        system: System prompt, or None.
        turns: The history.
    """

    model: str
    completion: bool
    settings: Settings
    system: str | None
    turns: tuple[Turn, ...]


def write_chat(path: Path, chat: SavedChat) -> None:
    """Write a chat to a file, which is new or holds a saved chat: `*.md` as Markdown, else JSON.

    Raises:
        UsageError: The file is something else, or cannot be written; it is as it was.
    """
    content = chat_as_markdown(chat) if is_markdown(path) else chat_as_json(chat)
    if len(content) > LARGEST:
        raise _wrong(path, f"chat: expected at most {LARGEST} bytes, got {len(content)}")
    if os.path.isfile(path) and os.path.getsize(path) and not _is_saved_chat(path):
        raise _wrong(path, "expected a new file or a saved chat, got another file")
    write_whole(path, [content], UsageError)


def read_chat(path: Path) -> SavedChat:
    """Read the chat in a file.

    Raises:
        UsageError: There is no such file, or it holds no chat that can be restored.
    """
    content = read_whole(path, LARGEST, UsageError)
    if content.startswith(_MARKDOWN.encode()):
        raise _wrong(path, "saved chat: expected JSON, got Markdown of /save")
    try:
        return _parse_chat(content)
    except (ValueError, SamplingError) as error:
        raise _wrong(path, f"saved chat: {error}") from None


def chat_as_json(chat: SavedChat) -> bytes:
    """Return a chat as JSON in UTF-8, with control characters escaped."""
    settings = {name: getattr(chat.settings.sampling, name) for name in SAMPLING}
    settings |= {"max_tokens": chat.settings.max_tokens, "stop": chat.settings.stop}
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": chat.model,
        "completion": chat.completion,
        "settings": settings,
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
        content = read_whole(path, LARGEST, UsageError)
        if is_markdown(path):
            return content.startswith(_MARKDOWN.encode())
        document = parse_strict_json(content)
    except (ValueError, UsageError):
        return False
    return isinstance(document, dict) and document.get("format") == _FORMAT


def _parse_chat(content: bytes) -> SavedChat:
    document: dict[str, object] = _typed(parse_strict_json(content), dict, "the file")
    if document.get("format") != _FORMAT:
        raise ValueError(f"format: expected '{_FORMAT}', got {described(document.get('format'))}")
    if document.get("version") != _VERSION or isinstance(document["version"], bool):
        raise ValueError(f"version: expected {_VERSION}, got {described(document.get('version'))}")
    _check_keys(document, _KEYS, "keys")
    completion = _typed(document["completion"], bool, "completion")
    messages = _messages(_typed(document["messages"], list, "messages"))
    system = None
    if messages and messages[0][0] == "system" and not completion:
        system = messages.pop(0)[1]
    return SavedChat(
        _text(document["model"], "model"),
        completion,
        _settings(_typed(document["settings"], dict, "settings")),
        system,
        _turns(messages),
    )


def _settings(found: dict[str, object]) -> Settings:
    found = _ADDED | found
    _check_keys(found, [*SAMPLING, "max_tokens", "stop"], "settings")
    sampling = {
        # JSON may say 1 for 1.0.
        name: float(value) if type(value) is int and type(default) is float else value
        for name, default in SAMPLING.items()
        for value in (found[name],)
    }
    most = found["max_tokens"]
    if most is not None and (type(most) is not int or most < 1):
        raise ValueError(f"max_tokens: expected null or a whole number >= 1, got {described(most)}")
    stop = [_text(text, "stop") for text in _typed(found["stop"], list, "stop")]
    if "" in stop:
        raise ValueError("stop: expected texts of >= 1 character, got an empty one")
    return Settings(SamplingArgs(**sampling), most, tuple(stop))  # type: ignore[arg-type]


def _messages(found: list[object]) -> list[tuple[str, str]]:
    messages = []
    for number, item in enumerate(found, 1):
        where = f"message {number}"
        fields = _typed(item, dict, where)
        _check_keys(fields, ("role", "content"), where)
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


def _check_keys(found: dict[str, object], expected: Collection[str], where: str) -> None:
    for name in expected:
        if name not in found:
            raise ValueError(f"{where}: expected {name}, got none")
    for name in found:
        if name not in expected:
            raise ValueError(f"{where}: expected {', '.join(expected)}, got {shown(name)}")


def _typed(value: object, kind: type[_Kind], where: str) -> _Kind:
    if not isinstance(value, kind):
        raise ValueError(f"{where}: expected {JSON_KINDS[kind]}, got {described(value)}")
    return value


def _text(value: object, where: str) -> str:
    return replace_surrogates(_typed(value, str, where))


def named_path(argument: str) -> Path:
    """Return the path that was typed: `~` is the home directory, quotes around it are dropped.

    Raises:
        UsageError: Nothing was typed.
    """
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in ("'", '"'):
        argument = argument[1:-1]
    if not argument:
        raise UsageError("a name of a file is wanted: got nothing")
    with contextlib.suppress(RuntimeError):  # there is no such home directory
        return Path(argument).expanduser()
    return Path(argument)


def read_text(path: Path, limit: int) -> str:
    """Read a file of UTF-8 text, without the mark of its byte order.

    Raises:
        UsageError: It is missing, unreadable, no regular file, larger than `limit` bytes, or
            not text.
    """
    content = read_whole(path, limit, UsageError)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"other bytes at byte {error.start}"
        raise _wrong(path, f"text: expected UTF-8, got {got}") from None
    if "\0" in text:
        raise _wrong(path, f"text: expected text, got a zero at byte {content.index(0)}")
    return text
