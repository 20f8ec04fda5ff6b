"""Errors raised when reading model files, of the form `<file>: <key>: expected X, got Y`.

Text from a file is escaped with `untrusted.shown` first, so that a hostile name can
neither move the cursor nor fill the screen.
"""

from ..ml.errors import LlamaBoltsError


class CheckpointError(LlamaBoltsError):
    """Raised when a checkpoint's files are missing, damaged or unsupported."""


class FileMemoryError(CheckpointError):
    """Raised when memory or address space for a file's content cannot be allocated."""


def mismatch(where: str, key: str, expected: object, actual: object) -> CheckpointError:
    """Return the error `<where>: <key>: expected X, got Y`.

    Nothing is escaped, so all arguments must be safe to print.
    """
    return CheckpointError(f"{where}: {key}: expected {expected}, got {actual}")
