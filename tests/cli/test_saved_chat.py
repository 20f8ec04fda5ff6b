"""A chat as a file: what is written is read again, and what is damaged is refused in one
line.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from src.cli.answer import Settings
from src.cli.commands import run_command
from src.cli.console import UsageError
from src.cli.saved_chat import (
    LARGEST,
    SavedChat,
    chat_as_json,
    read_chat,
    read_text,
    typed_path,
    write_chat,
)
from src.cli.session import Session, Turn
from src.model.sources import BUNDLED_MODEL
from src.untrusted import write_whole
from tests.cli.conftest import ALPHABET, reply, session_of

CHAT = SavedChat(
    "a/model",
    False,
    Settings(0.5, 7, 0.8, 0.1, 1.2, 3, max_tokens=20, stop=("the end", "\n")),
    "Be short.",
    (Turn("H\u00e9llo \U0001f642", '\x1b[31mred\x9b\u202e\u2028 \\ "\n\t'), Turn("", "")),
)
DEFAULTS = SavedChat("", True, Settings(), None, ())
ABSENT = object()


@pytest.mark.parametrize("chat", [CHAT, DEFAULTS])
def test_what_is_written_is_read_again_and_safe_to_show(tmp_path, chat):
    file = tmp_path / "chat.json"
    for _ in range(
        2
    ):  # a saved chat may be written over, also one that was laid out anew
        write_chat(file, chat)
        assert read_chat(file) == chat
        file.write_text(json.dumps(json.loads(file.read_bytes())))
    write_chat(file, chat)
    text = file.read_text("utf-8")
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    for shown in (
        ("H\u00e9llo \U0001f642", r"\u001b[31mred\u009b\u202e") if chat is CHAT else ()
    ):
        assert shown in text


def test_lone_surrogates_become_the_replacement_character(tmp_path):
    file = tmp_path / "chat.json"
    write_chat(
        file, SavedChat("m\udcff", False, DEFAULTS.settings, None, (Turn("\ud800", ""),))
    )
    assert read_chat(file).turns == (Turn("\ufffd", ""),)
    file.write_text(json.dumps(changed("messages.0.content", "\ud800")))
    assert read_chat(file).system == "\ufffd"


@pytest.mark.parametrize(
    "content",
    [b"my notes", b"{}", b'{"format": "x"}', b"[" * 100, b"\xff", b"x" * (LARGEST + 1)],
)
def test_another_file_is_not_written_over(tmp_path, content):
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="saved chat: expected it or a new file"):
        write_chat(file, CHAT)
    assert file.read_bytes() == content
    file.write_bytes(b"")  # as made by mktemp
    write_chat(file, CHAT)


def changed(keys: str, value: object) -> dict[str, Any]:
    """Returns the document of the chat with another value in a place, or with none."""
    document = found = json.loads(chat_as_json(CHAT))
    *path, last = (int(key) if key.isdigit() else key for key in keys.split("."))
    for key in path:
        found = found[key]
    if value is ABSENT:
        del found[last]
    else:
        found[last] = value
    return document


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        ("format", "other", "format: expected 'llama-bolts chat', got 'other'"),
        ("format", ABSENT, "format: expected 'llama-bolts chat', got"),
        ("version", 2, "version: expected 1, got 2"),
        ("version", True, "version: expected 1, got [Tt]rue"),
        ("version", "1", "version: expected 1, got '1'"),
        (
            "messages",
            ABSENT,
            "keys: expected format, .*, got missing or unknown keys 'messages'",
        ),
        ("more", 1, "keys: expected format, .*, got missing or unknown keys 'more'"),
        ("completion", 1, "completion: expected true or false, got 1"),
        ("model", [], "model: expected a text, got a"),
        ("settings", [], "settings: expected an object, got a"),
        ("settings.seed", ABSENT, "settings: expected .*'seed'"),
        ("settings.heat", 1, "settings: expected .*'heat'"),
        ("settings.temperature", -1, "temperature must be .*: got -1"),
        (
            "settings.seed",
            float("nan"),
            "expected a finite number, got NaN",
        ),  # strict JSON
        ("settings.max_tokens", 0, "max_tokens: expected null or .*, got 0"),
        ("settings.max_tokens", True, "max_tokens: .*, got true"),
        ("settings.max_tokens", "x" * 9999, r"max_tokens: .*, got 'x{77}\.\.\.'$"),
        ("settings.stop", "x", "stop: expected a list, got 'x'"),
        ("settings.stop", [1], "stop must contain texts of .*: got 1"),
        ("settings.stop", [""], "stop must contain texts of >= 1 character"),
        ("messages", {}, "messages: expected a list, got a"),
        ("messages.1.x", 1, r"messages\[1\] must have .*: got 'role', 'content', 'x'"),
        ("messages.1.role", "\x1b", r"role must be one of .*: got '\\x1b'"),
        (
            "messages.1.role",
            "system",
            "expected user and .*, got 'system', 'assistant', 'user'",
        ),
        (
            "messages.2.role",
            "user",
            "messages: expected user and .*, got 'user', 'user', 'user'",
        ),
        ("messages.4", ABSENT, r"got 'user', 'assistant', 'user' \(3 in all\)"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path, keys, value, reason):
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(changed(keys, value)))
    with pytest.raises(UsageError, match=f"^{file}: saved chat: .*{reason}") as refused:
        read_chat(file)
    assert "\x1b" not in str(refused.value)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    file = tmp_path / "chat.json"
    whole = chat_as_json(CHAT).rstrip()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="saved chat: expected"):
            read_chat(file)
    file.write_bytes(whole)
    assert read_chat(file) == CHAT


def test_a_chat_that_could_not_be_loaded_is_not_written(tmp_path):
    chat = replace(CHAT, turns=(Turn("x" * LARGEST, ""),))
    with pytest.raises(UsageError, match=f"expected at most {LARGEST} bytes"):
        write_chat(tmp_path / "chat.json", chat)
    assert not os.listdir(tmp_path)


def state(session: Session) -> tuple[object, ...]:
    turns = tuple(session.turns)
    return session.system, turns, session.settings, session.attached, session.unanswered


def test_a_saved_chat_goes_on_as_if_it_had_not_ended(random_model, tmp_path, capsys):
    file = tmp_path / "chat.json"
    session = session_of(
        random_model, "-c", "600", "--seed", "3", "-n", "9", "--stop", "zzz"
    )
    session.system = "Be short."
    session.ask("one")
    session.ask("two")
    told = f"saved: 2 answers and the settings, in {file}\n"
    assert reply(capsys, session, f"/save {file}") == told
    saved = state(session)
    expected = session.ask("three").text
    for fresh in (session_of(random_model, "-c", "600"), session):
        fresh.ask("something else")
        text = reply(capsys, fresh, f"/load {file}")
        assert text.startswith("loaded: 2 answers and the settings, ")
        assert text.endswith(" of 600 tokens; system prompt: Be short.\n")
        assert (state(fresh), fresh.last) == (saved, None)
        assert fresh.ask("three").text == expected


def test_completions_and_an_empty_chat_are_saved_and_loaded(session, typed, tmp_path):
    typed(f"/save {tmp_path}/chat")
    session.completion = True
    session.ask("see y")
    typed(f"/save {tmp_path}/texts")
    with pytest.raises(UsageError, match="expected continued texts"):
        typed(f"/load {tmp_path}/chat")
    session.clear()
    typed(f"/load {tmp_path}/texts")
    assert session.turns == [Turn("see y", "z")]
    session.completion = False
    with pytest.raises(UsageError, match="expected a chat"):
        typed(f"/load {tmp_path}/texts")
    assert "loaded: 0 answers" in typed(f"/load {tmp_path}/chat")
    assert session.turns == []


@pytest.mark.parametrize("length", [100, 150])
def test_a_chat_that_does_not_fit_is_refused_with_both_numbers(
    session, typed, alphabet_model, tmp_path, length
):
    session.ask("x" * 100)
    typed(f"/save {tmp_path}/chat.json")
    small = session_of(alphabet_model, "-c", str(length))
    small.ask("Hello")
    before = state(small)
    with pytest.raises(
        UsageError, match=f"saved chat: .*: 150 tokens >= {length} positions$"
    ):
        run_command(small, f"/load {tmp_path}/chat.json")
    assert state(small) == before


@pytest.mark.parametrize("command", ["/load", "/read"])
@pytest.mark.parametrize(
    "make",
    [
        lambda _: None, Path.mkdir, os.mkfifo, lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\0\1\2"),
        lambda path: path.write_bytes(b"\x1b]0;title\x07\xff"),
        lambda path: path.write_bytes(b"x" * (1 << 24)),
    ],
    ids=["missing", "directory", "fifo", "empty", "binary", "escapes", "huge"],
)  # fmt: skip
def test_a_bad_file_is_one_line_and_the_chat_stays_as_it_was(
    session, tmp_path, command, make
):
    session.ask("Hello")
    session.attached = "before"
    before = state(session)
    make(tmp_path / "bad\x1bname")
    with pytest.raises(UsageError) as refused:
        run_command(session, f"{command} {tmp_path}/bad\x1bname")
    assert r"bad\x1bname: " in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert state(session) == before


def test_texts_that_are_read_go_before_the_next_message(session, tmp_path, typed):
    first = tmp_path / "first.txt"
    second = tmp_path / "second.txt"
    first.write_text("one\n")
    second.write_text("two\n\n")
    told = "read: 3 characters before your next message, 3 tokens in total\n"
    assert typed(f"/read {first}") == told
    assert "8 tokens in total" in typed(f"/read {second}")
    session.ask(session.with_attached("What is it?"))
    assert session.turns == [Turn("one\n\ntwo\n\nWhat is it?", ALPHABET)]


@pytest.mark.parametrize("length", [246, 300, 3000])
def test_a_text_that_leaves_no_room_is_refused_with_both_numbers(
    session, tmp_path, typed, length
):
    file = tmp_path / "text"
    session.ask("Hello")  # 55 tokens
    file.write_text("x" * length)
    with pytest.raises(
        UsageError, match=f"fewer than the 300 tokens .*, got {length + 55}"
    ):
        run_command(session, f"/read {file}")
    assert session.attached == ""
    file.write_text("x" * 100)
    assert "100 tokens in total" in typed(f"/read {file}")


def test_a_chat_that_version_0_1_0_saved_is_gone_on_with(capsys):
    """The bundled model answered the questions; `tests/golden/chat-0.1.0.json` is as
    saved then.
    """
    file = Path(__file__).parents[1] / "golden" / "chat-0.1.0.json"
    session = session_of(BUNDLED_MODEL)
    assert reply(capsys, session, f"/load {file}").endswith(
        "; system prompt: You are a helpful assistant.\n"
    )
    assert session.turns == [
        Turn("What is the capital of France?", "The capital of France is Paris."),
        Turn("And of Italy?", "Rome"),
    ]
    assert session.settings == Settings(temperature=0.0, seed=7)
    session.ask("And of Spain?")
    assert len(session.turns) == 3


def test_a_path_is_what_was_typed():
    for typed, path in (
        ("a b.txt", "a b.txt"),
        ("'a b.txt'", "a b.txt"),
        ('"a.txt"', "a.txt"),
        ("it's", "it's"),
        ("'", "'"),
        ("~/x", f"{Path.home()}/x"),
        ("~not-a-user/x", "~not-a-user/x"),
    ):
        assert typed_path("/load", typed) == Path(path)


def test_what_is_no_text_or_too_long_is_refused(tmp_path):
    file = tmp_path / "text"
    for content, reason in (
        (b"x" * 101, "size: expected at most 100 bytes, got 101"),
        (b"ab\xff", "text: expected UTF-8, got an invalid byte at offset 2"),
        (b"ab\0", "text: expected text, got a zero at byte 2"),
    ):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=f"{file}: {reason}"):
            read_text(file, 100)
    text = "na\u00efve\r\n" + "x" * 89
    file.write_bytes(f"\ufeff{text}".encode())  # the mark of its byte order is left out
    assert read_text(file, 100) == text


def test_a_new_file_is_its_owners_an_old_one_keeps_its_mode_and_a_link_is_followed(
    tmp_path,
):
    file = tmp_path / "file"
    link = tmp_path / "link"
    link.symlink_to(file)
    for content, mode in ((b"new", 0o600), (b"newer", 0o640)):
        write_whole(link, [content], UsageError)
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (content, mode)
        file.chmod(0o640)
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("fault", "raised", "text"),
    [
        (OSError(28, "No space"), UsageError, "file: cannot be written: No space$"),
        (KeyboardInterrupt, KeyboardInterrupt, None),
    ],
)
def test_a_write_that_fails_leaves_the_old_file_alone(
    tmp_path, name, fault, raised, text
):
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with (
        mock.patch.object(os, name, side_effect=fault),
        pytest.raises(raised, match=text),
    ):
        write_whole(file, [b"new"], UsageError)
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])


def test_where_nothing_can_be_written_it_says_so(tmp_path):
    for name, reason in (
        (".", "it is not a regular file"), ("no/file", "No such file or directory"),
        ("/dev/null", "it is not a regular file"), ("a\0b", "null byte"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"cannot be written: .*{reason}"):
            write_whole(tmp_path / name, [b"x"], UsageError)
