"""Read tokenizer files whole, of bounded size; and the strict reading of JSON."""

import json
import stat
from pathlib import Path
from typing import NoReturn

from .errors import TokenizerError, label, mismatch, shown

# The largest that are in use, Llama 3's own in JSON, have about 17 MB.
MAX_FILE_BYTES = 64 << 20


def read_bytes(path: Path) -> bytes:
    """Read a whole regular file.

    Args:
        path: the file.

    Raises:
        TokenizerError: where it cannot be read, is no regular file, or is larger than
            `MAX_FILE_BYTES`.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for a writer
            raise TokenizerError(f"{label(path)}: expected a regular file, got something else")
        if status.st_size > MAX_FILE_BYTES:
            raise mismatch(path, "size", f"at most {MAX_FILE_BYTES} bytes", status.st_size)
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{label(path)}: cannot be read: {error.strerror}") from error


def read_json(path: Path) -> dict[str, object]:
    """Read a file that holds one JSON object, more strictly than Python does.

    Args:
        path: the file.

    Returns:
        The object. Nothing in it has been checked but that it is JSON in UTF-8, with each key
        once, without NaN or infinities, and not too deep for the parser.

    Raises:
        TokenizerError: where the file is not that, or cannot be read.
    """
    data = read_bytes(path)
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise mismatch(path, "text", "UTF-8", f"other bytes at byte {error.start}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise mismatch(path, "text", "JSON", f"something else at {where} ({error.msg})") from None
    except RecursionError:
        raise mismatch(path, "text", "a few levels of nesting", "very many") from None
    except ValueError as error:
        # A key that is there twice, NaN, or a number beyond Python's limit of 4300 digits.
        raise TokenizerError(f"{label(path)}: text: {_safe(error)}") from None
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


class _RefusedError(ValueError):
    pass


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"expected each key once, got '{shown(key)}' twice")
            seen.add(key)
    return result


def _refuse_constant(text: str) -> NoReturn:
    raise _RefusedError(f"expected a finite number, got {text}")


def _safe(error: ValueError) -> str:
    """Give our own words for what was refused; Python's would quote the file."""
    if isinstance(error, _RefusedError):
        return str(error)
    return "expected numbers of a few digits, got one of very many"
