"""The errors of reading model files: `<file>: <key>: expected X, got Y`.

Text from a file first passes through `shown` of `untrusted`, so that a hostile name can
neither move the cursor nor fill the screen.
"""

from ..ml.errors import LlamaBoltsError


class CheckpointError(LlamaBoltsError):
    """The files of a checkpoint are invalid."""


class FileMemoryError(CheckpointError):
    """Memory or address space does not suffice for the content of files."""


def mismatch(where: str, key: str, expected: object, actual: object) -> CheckpointError:
    """Return the error `<where>: <key>: expected X, got Y`, without escaping."""
    return CheckpointError(f"{where}: {key}: expected {expected}, got {actual}")
