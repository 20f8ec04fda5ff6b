"""What can go wrong between text and token ids.

The error of a file reads `<file>: <what>: expected X, got Y`, that of a call `[call] rule: got X`.
Text from a file passes through `shown` first.
"""

from pathlib import Path

from ..ml.errors import LlamaBoltsError
from ..untrusted import shown

__all__ = [
    "TokenizerError",
    "TokenizerMemoryError",
    "TokenizerNotFoundError",
    "file_error",
    "mismatch",
    "shown",
]


class TokenizerError(LlamaBoltsError):
    """A tokenizer file that cannot be used, or a call with a wrong text or id."""


class TokenizerNotFoundError(TokenizerError):
    """A directory that holds no tokenizer file at all."""


class TokenizerMemoryError(TokenizerError, MemoryError):
    """The system refused memory for a tokenizer, a text or its ids."""


def file_error(path: Path, text: str) -> TokenizerError:
    """Form the error `<file>: <text>`; the path is escaped and not cut."""
    escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))
    return TokenizerError(f"{escaped}: {text}")


def mismatch(path: Path, what: str, expected: object, got: object) -> TokenizerError:
    """Form the error `<file>: <what>: expected X, got Y`.

    Args:
        path: The file.
        what: The part of it that is wrong.
        expected: What should be there.
        got: What is there; text from a file has to pass through `shown` first.
    """
    return file_error(path, f"{what}: expected {expected}, got {got}")
