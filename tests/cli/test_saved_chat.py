"""A chat as a file: what is written is read again, and what is damaged is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.cli.errors import UsageError
from src.cli.saved_chat import LARGEST, SavedChat, chat_as_json, read_chat, write_chat
from src.cli.session import Turn
from src.cli.settings import Settings
from src.inference import SamplingArgs

CHAT = SavedChat(
    "a/model",
    False,
    Settings(SamplingArgs(0.5, 7, 0.8, 0.1, 1.2, 3), 20, ("the end", "\n")),
    "Be short.",
    (Turn("H\u00e9llo \U0001f642", '\x1b[31mred\x9b\u202e\u2028 \\ "\n\t'), Turn("", "")),
)
DEFAULTS = SavedChat("", True, Settings(SamplingArgs()), None, ())

Document = dict[str, Any]


def document() -> Document:
    loaded: Document = json.loads(chat_as_json(CHAT))
    return loaded


@pytest.mark.parametrize("chat", [CHAT, DEFAULTS])
def test_what_is_written_is_read_again(tmp_path: Path, chat: SavedChat) -> None:
    file = tmp_path / "chat.json"
    for _ in range(2):  # a saved chat may be written over
        write_chat(file, chat)
        assert read_chat(file) == chat


def test_the_file_is_json_that_is_safe_to_show(tmp_path: Path) -> None:
    text = chat_as_json(CHAT).decode()
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert "H\u00e9llo \U0001f642" in text
    assert r"\u001b[31mred\u009b\u202e" in text


def test_lone_surrogates_become_the_replacement_character(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    write_chat(file, SavedChat("m\udcff", False, DEFAULTS.settings, None, (Turn("\ud800", ""),)))
    assert read_chat(file).turns == (Turn("\ufffd", ""),)
    changed = json.loads(file.read_bytes())
    changed["messages"][0]["content"] = "\ud800"
    file.write_text(json.dumps(changed))
    assert read_chat(file).turns == (Turn("\ufffd", ""),)


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    for content in (b"my notes", b"{}", b'{"format": "other"}', b"[" * 100, b"\xff"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="expected a new file or a saved chat"):
            write_chat(file, CHAT)
        assert file.read_bytes() == content
    file.write_bytes(b"")  # as made by mktemp
    write_chat(file, CHAT)
    assert read_chat(file) == CHAT


def changing(*keys: str | int, value: object) -> Callable[[Document], None]:
    def change(found: Any) -> None:
        for key in keys[:-1]:
            found = found[key]
        found[keys[-1]] = value

    return change


def dropping(*keys: str | int) -> Callable[[Document], None]:
    def drop(found: Any) -> None:
        for key in keys[:-1]:
            found = found[key]
        del found[keys[-1]]

    return drop


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (changing("format", value="other"), "format: expected 'llama-bolts chat', got 'other'"),
        (dropping("format"), "format: expected 'llama-bolts chat', got nothing"),
        (changing("version", value=2), "version: expected 1, got 2"),
        (changing("version", value=True), "version: expected 1, got true or false"),
        (changing("version", value="1"), "version: expected 1, got '1'"),
        (dropping("messages"), "keys: expected messages, got none"),
        (changing("more", value=1), "keys: expected format, .*, got 'more'"),
        (changing("completion", value=1), "completion: expected true or false, got 1"),
        (changing("model", value=[]), "model: expected a text, got a list"),
        (changing("settings", value=[]), "settings: expected an object, got a list"),
        (dropping("settings", "seed"), "settings: expected seed, got none"),
        (changing("settings", "heat", value=1), "settings: expected .*, got 'heat'"),
        (changing("settings", "temperature", value="x"), "temperature must be a number: got str"),
        (changing("settings", "temperature", value=-1), "temperature must be .*: got -1.0"),
        (changing("settings", "top_k", value=1.5), "top_k must be a whole number: got float"),
        (changing("settings", "top_p", value=True), "top_p must be a number: got bool"),
        (changing("settings", "top_p", value=None), "top_p must be a number: got NoneType"),
        (changing("settings", "seed", value=-1), "seed must be at least 0"),
        (changing("settings", "max_tokens", value=0), "max_tokens: expected null or .*, got 0"),
        (changing("settings", "max_tokens", value=True), "max_tokens: .*, got true or false"),
        (changing("settings", "stop", value="x"), "stop: expected a list, got 'x'"),
        (changing("settings", "stop", value=[1]), "stop: expected a text, got 1"),
        (changing("settings", "stop", value=[""]), "stop: expected texts of >= 1 character"),
        (changing("messages", value={}), "messages: expected a list, got an object"),
        (changing("messages", 0, value="x"), "message 1: expected an object, got 'x'"),
        (changing("messages", 0, value={}), "message 1: expected role, got none"),
        (changing("messages", 1, "x", value=1), "message 2: expected role, content, got 'x'"),
        (changing("messages", 1, "content", value=None), "content: expected a text, got nothing"),
        (changing("messages", 1, "role", value="\x1b"), r"got '\\x1b' in the place of user"),
        (changing("messages", 1, "role", value="system"), "got 'system' in the place of user"),
        (changing("messages", 2, "role", value="user"), "got 'user' in the place of assistant"),
        (dropping("messages", 4), "expected an answer to the last question, got none"),
    ],
)
def test_a_file_of_another_shape_is_refused(
    tmp_path: Path, damage: Callable[[Document], None], reason: str
) -> None:
    file = tmp_path / "chat.json"
    found = document()
    file.write_text(json.dumps(found))
    assert read_chat(file) == CHAT  # the valid twin
    damage(found)
    file.write_text(json.dumps(found))
    with pytest.raises(UsageError, match=f"^{file}: saved chat: .*{reason}") as refused:
        read_chat(file)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"seed": 3', '"seed": NaN', "expected a finite number, got NaN"),
        ('"temperature": 0.5', '"temperature": 1e999', "expected a finite number, got '1e999'"),
        ('"seed": 3', '"seed": 3, "seed": 4', "expected each key once, got 'seed' twice"),
        ('"seed": 3', f'"seed": {"9" * 5000}', "expected at most 32 digits, got 5000"),
        ('"seed": 3', f'"seed": {"[" * 9999}', "expected a few levels of nesting, got very many"),
        ("Be short.", "Be \xff short.", "expected UTF-8, got other bytes"),
        ("Be short.", "Be \0 short.", "expected JSON, got something else at line"),
    ],
)
def test_what_is_no_strict_json_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    file = tmp_path / "chat.json"
    text = chat_as_json(CHAT).decode()
    assert text.count(old) == 1
    file.write_bytes(
        text.replace(old, new).encode("latin-1" if "\xff" in new else "utf-8", "replace")
    )
    with pytest.raises(UsageError, match=f"saved chat: {reason}"):
        read_chat(file)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    whole = chat_as_json(CHAT).rstrip()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="saved chat: expected"):
            read_chat(file)
    file.write_bytes(whole)
    assert read_chat(file) == CHAT


def test_a_huge_file_is_refused_at_once_and_a_huge_chat_not_written(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(UsageError, match=f"expected at most {LARGEST} bytes, got {1 << 40}"):
        read_chat(file)
    file.unlink()
    turn = Turn("x" * LARGEST, "")
    with pytest.raises(UsageError, match=f"expected at most {LARGEST} bytes"):
        write_chat(file, SavedChat("", True, CHAT.settings, None, (turn,)))
    assert not file.exists()


def test_a_chat_is_written_as_markdown_to_be_read(tmp_path: Path) -> None:
    file = tmp_path / "chat.MD"
    chat = SavedChat("dir", False, DEFAULTS.settings, "Be kind.", (Turn("a\nb", "c\x1b[31m"),))
    write_chat(file, chat)
    text = file.read_text("utf-8")
    assert "Model: dir\n" in text
    assert "temperature 0.6, top_k 50" in text
    sections = "## System\n\nBe kind.\n\n## User\n\na\nb\n\n## Assistant\n\nc\\x1b[31m\n"
    assert text.endswith(sections)
    write_chat(file, chat)  # over one that was written before


def test_another_markdown_file_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    for content in ("# Notes\n", chat_as_json(CHAT).decode()):
        file.write_text(content)
        with pytest.raises(UsageError, match="expected a new file or a saved chat"):
            write_chat(file, CHAT)
        assert file.read_text() == content


def test_a_chat_in_markdown_is_not_loaded_and_it_is_said_why(tmp_path: Path) -> None:
    file = tmp_path / "chat.md"
    write_chat(file, CHAT)
    with pytest.raises(UsageError, match=r"chat\.md: saved chat: expected JSON, got Markdown"):
        read_chat(file)
