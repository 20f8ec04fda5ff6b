"""Errors of reading model files: one root class and one text form.

Every text is `<file>: <what>: expected X, got Y`. Whatever comes from a file passes through `shown`
of `untrusted` first, so that a hostile name can neither move the cursor nor fill the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..ml.errors import LlamaBoltsError
from ..untrusted import shown

__all__ = [
    "ArchiveError",
    "CheckpointError",
    "FileAccessError",
    "FileChangedError",
    "FileMemoryError",
    "NotACheckpointError",
    "ParamsError",
    "PickleRefusedError",
    "SafetensorsError",
    "ShardError",
    "TensorRecordError",
    "mismatch",
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
    """A tensor's size, stride, offset or dtype does not fit the bytes of its record."""


class ShardError(CheckpointError):
    """The tensors of one or several files are not those of one whole model."""


class ParamsError(CheckpointError):
    """A file of hyperparameters is not strict JSON, or has a missing, unknown or impossible key."""


class FileMemoryError(CheckpointError):
    """There is not enough memory, or address space, for the content of files."""


class FileChangedError(CheckpointError):
    """A mapped file was truncated or rewritten after it was opened."""


def mismatch(where: str, what: str, expected: object, got: object) -> str:
    """Form the text `<where>: <what>: expected X, got Y`; all four are shown as they are."""
    return f"{where}: {what}: expected {expected}, got {got}"


def some_of(names: Collection[str], show: Callable[[str], str] = shown) -> str:
    """Name the first five of several and count them, for example `'a', 'b' (2 in all)`.

    Args:
        names: The names.
        show: What makes each fit to be shown; `str` for texts that are so already.
    """
    head = ", ".join(show(name) for name in list(names)[:_MOST_NAMES_SHOWN])
    more = ", ..." if len(names) > _MOST_NAMES_SHOWN else ""
    return f"{head}{more} ({len(names)} in all)"
