"""`/save`, `/load` and `/read`: a chat as JSON or Markdown, and texts that go into one."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    some_of,
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
_KINDS: dict[str, type] = {
    "format": str, "version": int, "model": str, "completion": bool, "settings": dict,
    "messages": list,
}  # fmt: skip


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
    """What a file of a chat holds."""

    model: str  # where the model was that answered
    completion: bool  # whether texts were continued instead of messages answered
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
    content = read_whole(path, LARGEST, UsageError)
    if is_markdown(path):
        return content.startswith(_MARKDOWN.encode())
    try:
        document = parse_strict_json(content)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("format") == _FORMAT


def _parse_chat(content: bytes) -> SavedChat:
    found = parse_strict_json(content)
    for name, expected in (("format", _FORMAT), ("version", _VERSION)):
        if isinstance(found, dict) and found.get(name) != expected:
            raise ValueError(f"{name}: expected {expected}, got {described(found.get(name))}")
    document = _fields(found, _KINDS, "the file")
    messages = []
    for number, message in enumerate(document["messages"], 1):
        fields = _fields(message, {"role": str, "content": str}, f"message {number}")
        messages.append((fields["role"], replace_surrogates(fields["content"])))
    system = None
    if messages and messages[0][0] == "system" and not document["completion"]:
        system = messages.pop(0)[1]
    model, settings = replace_surrogates(document["model"]), _settings(document["settings"])
    return SavedChat(model, document["completion"], settings, system, _turns(messages))


def _settings(found: dict[str, Any]) -> Settings:
    kinds = dict.fromkeys((*SAMPLING, "max_tokens"), object) | {"stop": list}
    found = _fields(_ADDED | found, kinds, "settings")
    sampling: dict[str, Any] = {
        # JSON may say 1 for 1.0.
        name: float(value) if type(value) is int and type(default) is float else value
        for name, default in SAMPLING.items()
        for value in (found[name],)
    }
    most, stop = found["max_tokens"], found["stop"]
    if most is not None and (type(most) is not int or most < 1):
        raise ValueError(f"max_tokens: expected null or a whole number >= 1, got {described(most)}")
    if not all(isinstance(text, str) and text for text in stop):
        raise ValueError("stop: expected texts of >= 1 character, got something else")
    return Settings(SamplingArgs(**sampling), most, tuple(map(replace_surrogates, stop)))


def _turns(messages: Sequence[tuple[str, str]]) -> tuple[Turn, ...]:
    """Return questions with their answers; after a system message they have to alternate."""
    if [role for role, _ in messages] != ["user", "assistant"] * (len(messages) // 2):
        raise ValueError("messages: expected user and assistant by turns after a system message")
    texts = [text for _, text in messages]
    return tuple(map(Turn, texts[::2], texts[1::2]))


def _fields(found: object, kinds: Mapping[str, type], where: str) -> dict[str, Any]:
    """Return an object of JSON that has exactly these keys, with values of these types."""
    if not isinstance(found, dict):
        raise ValueError(f"{where}: expected an object, got {described(found)}")
    if missing := [name for name in kinds if name not in found]:
        raise ValueError(f"{where}: expected {some_of(missing, str)}, got none")
    if more := [name for name in found if name not in kinds]:
        raise ValueError(f"{where}: expected {', '.join(kinds)}, got {some_of(more)} too")
    for name, kind in kinds.items():
        value = found[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(
                f"{where}: {name}: expected {JSON_KINDS[kind]}, got {described(value)}"
            )
    return found


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
