"""Untrusted input: files are opened with care, JSON is read strictly, text is made safe
to show.
"""

import json
import os
from pathlib import Path

import pytest

from src import untrusted
from src.untrusted import (
    described,
    is_same_json,
    label_of,
    open_regular,
    parse_strict_json,
    read_whole,
    shown,
    some_of,
)


def test_a_file_is_read_whole_up_to_its_limit_or_refused_if_it_ends_early(
    tmp_path, monkeypatch
):
    path = tmp_path / "file"
    path.touch()
    assert read_whole(path, 0, RuntimeError) == b""
    path.write_bytes(b"0123456789")
    assert read_whole(path, 10, RuntimeError) == b"0123456789"
    with pytest.raises(
        RuntimeError, match="size: expected at most 9 bytes, got 10 bytes"
    ):
        read_whole(path, 9, RuntimeError)
    monkeypatch.setattr(untrusted, "_read_up_to", lambda stream, size, most: b"0123")
    with pytest.raises(RuntimeError, match="size: expected 10 bytes, got only 4"):
        read_whole(path, 10, RuntimeError)


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system has no such files"
)
def test_a_file_that_does_not_tell_its_size_is_read_to_its_end_or_limit():
    content = read_whole(Path("/proc/self/status"), 1 << 20, RuntimeError)
    assert content.startswith(b"Name:")
    assert content.endswith(b"\n")
    with pytest.raises(RuntimeError, match="size: expected at most 5 bytes, got more"):
        read_whole(Path("/proc/self/status"), 5, RuntimeError)


def test_what_is_no_regular_file_is_refused_and_left_closed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "pipe", "kind: expected a regular file, got a FIFO"),
        (tmp_path, "kind: expected a regular file, got a directory"),
        (Path(os.devnull), "kind: expected a regular file, got a character dev"),
        (tmp_path / "missing", "cannot be opened: No such file"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            open_regular(path, RuntimeError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é 日本", "'plain é 日本'"),
        ("", "''"),
        ("a\nb\t\0", "'a\\nb\\t\\x00'"),
        ("\x1b[2J\x9b", "'\\x1b[2J\\x9b'"),
        ("\u202e\u2066\u2028\ud800", "'\\u202e\\u2066\\u2028\\ud800'"),
        ("a\\b", "'a\\\\b'"),
        ("x" * 80, "'" + "x" * 80 + "'"),
        ("x" * 81, "'" + "x" * 77 + "...'"),
        ("\x1b" * 40, "'" + ("\\x1b" * 20)[:77] + "...'"),
    ],
)
def test_text_is_quoted_escaped_and_cut(text, expected):
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [("1\n", r"'1\n'"), (1, "1"), (0.5, "0.5"), (True, "true"), (None, "null"),
     (["\x1b"], "a list"), ({}, "an object"), ((), "a value of type tuple")],
)  # fmt: skip
def test_a_value_is_described_by_itself_or_by_its_type(value, text):
    assert described(value) == text


def test_a_path_is_escaped_and_never_cut():
    assert label_of(Path("a\x1b[2J\u202e\\b")) == "a\\x1b[2J\\u202e\\b"
    assert label_of(Path("x" * 200)) == "x" * 200


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (
            b'{"a": 1, "b": [1.5, -2e3, true, null, "x\\"]"]}',
            {"a": 1, "b": [1.5, -2e3, True, None, 'x"]']},
        ),
        (b" 7 ", 7),
        (b'"[[[["', "[[[["),
        ('{"ä": "\\u00e4"}'.encode(), {"ä": "ä"}),
        (b"[" * 32 + b"]" * 32, None),
        (b'{"\\\\": {}}', {"\\": {}}),
    ],
)
def test_json_of_the_standard_is_parsed(content, value):
    parsed = parse_strict_json(content)
    if value is not None:
        assert parsed == value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1 column 1"),
        (b"{", "line 1"),
        (b'{"a": 1,}', "line 1"),
        (b"{'a': 1}", "line 1"),
        (b'{"a": 1} x', "line 1"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' twice"),
        (b'{"x": {"\\u001b[2J": 1, "\\u001b[2J": 1}}', "'\\x1b[2J' twice"),
        (b"NaN", "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b"1e999", "1e999"),
        (b"-1e999", "1e999"),
        (b"9" * 33, "32 digits"),
        (b"9" * 5000, "32 digits"),
        (b"[" * 60_000, "got very many"),
        (b'{"a":' * 10_000, "got very many"),
        (b'"' + b"\\" * 59_999, "line 1"),
        (b"\xff", "offset 0"),
        ("{}".encode("utf-16"), "offset 0"),
        (b"\xef\xbb\xbf{}", "line 1"),
    ],
)
def test_everything_else_is_refused_with_a_reason(content, words):
    with pytest.raises(ValueError, match="expected") as caught:
        parse_strict_json(content)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_values_are_counted_outside_of_texts():
    """A template may have many braces; the count of an error is the count that is
    limited.
    """
    text = json.dumps({"template": '{[,:"\\' * 20_000, "more": "," * 100_000}).encode()
    assert parse_strict_json(text, 9) == json.loads(text)
    with pytest.raises(ValueError, match=r"got 9$"):
        parse_strict_json(text, 8)
    many = b"[" + b"{}," * 20 + b'"{,"]'
    assert parse_strict_json(many, 101) == json.loads(many)
    rule = (
        "expected at most 100 values, where an object counts four times and a key twice, "
        "got 101"
    )
    with pytest.raises(ValueError, match=rule):
        parse_strict_json(many, 100)


def test_a_long_text_without_an_end_is_passed_over_once():
    content = b'{"a": "' + b'\\"' * 500_000
    with pytest.raises(ValueError, match="expected JSON"):
        parse_strict_json(content + b"{" * 300_000)


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (64, 64, True),
        (64.0, 64, False),
        (True, 1, False),
        (0, False, False),
        ({"a": [1, None], "b": "x"}, {"b": "x", "a": [1, None]}, True),
        ({"a": [1.0]}, {"a": [1]}, False),
        ("1", 1, False),
    ],
)
def test_values_of_json_are_the_same_only_with_their_types(value, expected, same):
    assert is_same_json(value, expected) is same


def test_a_list_of_names_shows_five_and_counts_all():
    assert some_of(["a", "b"]) == "'a', 'b' (2 in all)"
    assert some_of(list("abcdefg")) == "'a', 'b', 'c', 'd', 'e', ... (7 in all)"
