"""Errors of tokenizer files, text and token ids.

The error of a file reads `<file>: <key>: expected X, got Y`, the error of a call `[call]
rule: got X`. Text from a file first passes through `shown` of `untrusted`.
"""

from pathlib import Path

from ..ml.errors import LlamaBoltsError
from ..untrusted import label_of


class TokenizerError(LlamaBoltsError):
    """A tokenizer file is invalid, or a call has an invalid text or id."""


class TokenizerNotFoundError(TokenizerError):
    """A directory has no tokenizer file."""


class TokenizerMemoryError(TokenizerError, MemoryError):
    """The system refused memory for a tokenizer, a text or its ids."""


def mismatch(path: Path, key: str, expected: object, actual: object) -> TokenizerError:
    """Return the error `<file>: <key>: expected X, got Y`; only the path is escaped."""
    return TokenizerError(f"{label_of(path)}: {key}: expected {expected}, got {actual}")
