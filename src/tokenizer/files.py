"""Read tokenizer files whole, of bounded size."""

from pathlib import Path

from ..outside import UnfitFileError, parse_strict_json, read_whole
from .errors import TokenizerError, label, mismatch, shown

# The largest that are in use, Llama 3's own in JSON, have about 17 MB.
MAX_FILE_BYTES = 64 << 20
# Gemma has 262 144. In JSON, with merges, Llama 3 has 10 values for each of 128 000.
MAX_TOKENS = 1 << 19
_MAX_JSON_VALUES = 1 << 22


def read_bytes(path: Path) -> bytes:
    """Read a whole regular file.

    Args:
        path: the file.

    Raises:
        TokenizerError: where it cannot be read, is no regular file, or is larger than
            `MAX_FILE_BYTES`.
    """
    try:
        return read_whole(path, MAX_FILE_BYTES)
    except UnfitFileError as error:
        raise TokenizerError(f"{label(path)}: {error}") from None


def read_json(path: Path) -> dict[str, object]:
    """Read a file that holds one JSON object, more strictly than Python does.

    Args:
        path: the file.

    Returns:
        The object. Nothing in it has been checked but what `parse_strict_json` checks.

    Raises:
        TokenizerError: where the file is not that, or cannot be read.
    """
    data = read_bytes(path)
    try:
        value = parse_strict_json(data, _MAX_JSON_VALUES)
    except ValueError as error:
        raise TokenizerError(f"{label(path)}: text: {error}") from None
    if not isinstance(value, dict):
        raise mismatch(path, "text", "an object", kind_of(value))
    return value


_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
_KINDS |= {int: "a number", float: "a number", type(None): "null"}


def kind_of(value: object) -> str:
    """Name the kind of a JSON value, for errors."""
    return _KINDS[type(value)]


def described(value: object) -> str:
    """Show a JSON value where it is a text, and its kind otherwise, for errors."""
    return f"'{shown(value)}'" if isinstance(value, str) else kind_of(value)
