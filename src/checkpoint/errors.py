"""The errors of reading model files, and their one text form: `<file>: <what>: expected
X, got Y`.

Whatever comes from a file passes through `shown` of `untrusted` first, so that a hostile
name can neither move the cursor nor fill the screen.
"""

from ..ml.errors import LlamaBoltsError


class CheckpointError(LlamaBoltsError):
    """Something that is wrong with the files of a checkpoint."""


class FileMemoryError(CheckpointError):
    """There is not enough memory, or address space, for the content of files."""


def mismatch(where: str, what: str, expected: object, got: object) -> CheckpointError:
    """Form the error `<where>: <what>: expected X, got Y`; all four are shown as they
    are.
    """
    return CheckpointError(f"{where}: {what}: expected {expected}, got {got}")
