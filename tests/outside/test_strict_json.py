"""Strict JSON: what Python's parser lets through beyond the standard is refused."""

import pytest

from src.outside import parse_strict_json


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
def test_json_of_the_standard_is_parsed(content: bytes, value: object) -> None:
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
        (b"\xff", "byte 0"),
        ("{}".encode("utf-16"), "byte 0"),
        (b"\xef\xbb\xbf{}", "line 1"),
    ],
)
def test_everything_else_is_refused_with_a_reason(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_strict_json(content)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
