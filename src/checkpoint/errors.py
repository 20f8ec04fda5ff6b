"""Errors of reading model files: one root class and one text form.

Every text is `<file>: <what>: expected X, got Y`. Whatever comes from a file passes through `shown`
first, so that a hostile name can neither move the cursor nor fill the screen.
"""

from __future__ import annotations

from ..ml.errors import LlamaBoltsError
from ..outside import shown

__all__ = [
    "ArchiveError",
    "CheckpointError",
    "CheckpointMemoryError",
    "FileAccessError",
    "FileChangedError",
    "NotACheckpointError",
    "ParamsError",
    "PickleRefusedError",
    "SafetensorsError",
    "ShardError",
    "TensorRecordError",
    "mismatch",
    "shown",
    "some_of",
]

_MOST_NAMES_SHOWN = 5


class CheckpointError(LlamaBoltsError):
    """Root of all that can be wrong with the files of a checkpoint."""


class FileAccessError(CheckpointError):
    """A file is missing, unreadable, too large, or not a regular file."""


class NotACheckpointError(CheckpointError):
    """The file is readable but is not a checkpoint of a known layout."""


class ArchiveError(CheckpointError):
    """The zip container is damaged, or built in a way `torch.save` never does."""


class PickleRefusedError(CheckpointError):
    """The pickle program is damaged, or asks for something outside the allow-list."""


class SafetensorsError(CheckpointError):
    """The header of a safetensors file, or the index of several, breaks a rule of the format."""


class TensorRecordError(CheckpointError):
    """A tensor's size, stride, offset or dtype does not fit the bytes it is said to lie in."""


class ShardError(CheckpointError):
    """The tensors of one or several files are not those of one whole model."""


class ParamsError(CheckpointError):
    """A file of hyperparameters is not strict JSON, or has a missing, unknown or impossible key."""


class CheckpointMemoryError(CheckpointError, MemoryError):
    """A merged copy of several files that does not fit; the text carries the arithmetic."""


class FileChangedError(CheckpointError):
    """A mapped file was truncated or rewritten after it was opened."""


def mismatch(where: str, what: str, expected: object, got: object) -> str:
    """Form the text `<where>: <what>: expected X, got Y`; all four are shown as they are."""
    return f"{where}: {what}: expected {expected}, got {got}"


def some_of(names: list[str]) -> str:
    """Name the first five of a list and count the rest, for example `'a', 'b' (2 in all)`."""
    head = ", ".join(shown(name) for name in names[:_MOST_NAMES_SHOWN])
    more = ", ..." if len(names) > _MOST_NAMES_SHOWN else ""
    return f"{head}{more} ({len(names)} in all)"
