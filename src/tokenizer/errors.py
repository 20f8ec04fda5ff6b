"""Errors raised by tokenizers and the readers of tokenizer files.

A file error reads `<file>: <key>: expected X, got Y`, and an argument error reads `[call]
rule: got X`. Text from a file is escaped with `untrusted.shown` first.
"""

from pathlib import Path

from ..ml.errors import LlamaBoltsError
from ..untrusted import label_of


class TokenizerError(LlamaBoltsError):
    """Raised when a tokenizer file, a string or a token id is invalid."""


class TokenizerNotFoundError(TokenizerError):
    """Raised when a directory has no tokenizer file."""


class TokenizerMemoryError(TokenizerError, MemoryError):
    """Raised when memory for a tokenizer, text or token ids cannot be allocated."""


def mismatch(path: Path, key: str, expected: object, actual: object) -> TokenizerError:
    """Return the error `<file>: <key>: expected X, got Y`.

    Only the path is escaped, so `expected` and `actual` must be safe to print.
    """
    return TokenizerError(f"{label_of(path)}: {key}: expected {expected}, got {actual}")
