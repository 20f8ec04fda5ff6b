"""Text from files in errors: it cannot move the cursor, and does not fill the screen."""

from pathlib import Path

import pytest

from src.outside import described, label_of, shown


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
def test_text_is_quoted_escaped_and_cut(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_a_value_is_described_by_itself_or_by_its_type() -> None:
    assert [described(value) for value in ("1\n", 1, 0.5, True, None)] == [
        "'1\\n'", "1", "0.5", "True", "None",
    ]  # fmt: skip
    assert described(["\x1b"]) == "a value of type list"
    assert described({}) == "a value of type dict"


def test_a_path_is_escaped_and_never_cut() -> None:
    assert label_of(Path("a\x1b[2J\u202e\\b")) == "a\\x1b[2J\\u202e\\b"
    assert label_of(Path("x" * 200)) == "x" * 200
