"""The texts of errors: one form, and nothing from a file reaches the terminal unescaped."""

import pytest

from src.checkpoint import errors
from src.ml import LlamaBoltsError


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
    assert errors.shown(text) == expected


def test_a_list_of_names_shows_five_and_counts_all() -> None:
    assert errors.some_of(["a", "b"]) == "'a', 'b' (2 in all)"
    assert errors.some_of(list("abcdefg")) == "'a', 'b', 'c', 'd', 'e', ... (7 in all)"


def test_a_mismatch_has_the_form_of_all_texts() -> None:
    assert errors.mismatch("f.pth", "size", 3, 4) == "f.pth: size: expected 3, got 4"


def test_every_error_is_of_the_one_base_class() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    ours = [value for value in classes if value is not LlamaBoltsError]
    assert len(ours) == 11
    assert all(issubclass(value, errors.CheckpointError) for value in ours)
