"""Read tokenizer files whole, of bounded size, and check the JSON values in them."""

from pathlib import Path
from typing import TypeVar

from ..untrusted import UnfitFileError, parse_strict_json, read_whole
from .errors import file_error, mismatch, shown

_T = TypeVar("_T")

# The largest in use, Llama 3's own in JSON, have about 17 MB.
MAX_FILE_BYTES = 64 << 20
# Gemma has 262 144. In JSON, with merges, Llama 3 has 10 values for each of 128 000.
MAX_TOKENS = 1 << 19
_MAX_JSON_VALUES = 1 << 22


def read_bytes(path: Path) -> bytes:
    """Read a whole regular file.

    Args:
        path: The file.

    Raises:
        TokenizerError: It cannot be read, is not a regular file, or is larger than
            `MAX_FILE_BYTES`.
    """
    try:
        return read_whole(path, MAX_FILE_BYTES)
    except UnfitFileError as error:
        raise file_error(path, str(error)) from None


def read_json(path: Path) -> dict[str, object]:
    """Read a file that holds one JSON object, more strictly than Python does.

    Args:
        path: The file.

    Returns:
        The object. Only what `parse_strict_json` checks has been checked in it.

    Raises:
        TokenizerError: The file is something else, or cannot be read.
    """
    try:
        value = parse_strict_json(read_bytes(path), _MAX_JSON_VALUES)
    except ValueError as error:
        raise file_error(path, f"text: {error}") from None
    return expect_kind(path, "text", value, dict)


_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
_KINDS |= {int: "a number", float: "a number", type(None): "null"}
_EXPECTED = _KINDS | {bool: "true or false", int: "a whole number"}


def expect_kind(path: Path, what: str, value: object, kind: type[_T]) -> _T:
    """Return a JSON value if it is of the kind expected: dict, list, str, bool or int.

    Args:
        path: The file, for errors.
        what: The part of the file that it is.
        value: The value.
        kind: What is expected; a truth value is not a whole number.

    Raises:
        TokenizerError: It is something else.
    """
    if type(value) is not kind:
        raise mismatch(path, what, _EXPECTED[kind], kind_of(value))
    return value


def kind_of(value: object) -> str:
    """Name the kind of a JSON value, for errors."""
    return _KINDS[type(value)]


def described(value: object) -> str:
    """Show a JSON value if it is a text, and its kind otherwise, for errors."""
    return shown(value) if isinstance(value, str) else kind_of(value)
