"""Steps common to all downloads: consent, free space, and a lock between processes."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..memory import readable_bytes
from ..untrusted import label_of, reason_of
from .errors import CatalogError, mismatch

LARGE_BYTES = 1 << 30
"""A larger download needs consent."""


@dataclass(frozen=True)
class Downloads:
    """The callbacks of a download.

    Attributes:
        note: Called with a line of text before a download begins, and before it waits for
            another process.
        progress: Called with the number of downloaded bytes and the total.
        allows: Called with the name and size of a large download. Returns whether to
            begin it.
    """

    note: Callable[[str], None] = lambda _line: None
    progress: Callable[[int, int], None] = lambda _done, _total: None
    allows: Callable[[str, int], bool] = lambda _name, _nbytes: False


def check_consent(name: str, nbytes: int, downloads: Downloads) -> None:
    """Ask for consent to a large download.

    Raises:
        CatalogError: The download is not allowed.
    """
    if nbytes > LARGE_BYTES and not downloads.allows(name, nbytes):
        rule = f"consent to {readable_bytes(nbytes)} (--yes, or `allows` of Downloads)"
        raise mismatch(name, "download", rule, "none")


def check_space(name: str, directory: Path, nbytes: int) -> None:
    """Check that the disk has room for a download to a directory that may not exist yet.

    Raises:
        CatalogError: There is not enough free disk space.
    """
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        free = shutil.disk_usage(existing).free
    except OSError:  # the error will be reported by the download itself
        return
    if free < nbytes:
        rule = f"{readable_bytes(nbytes)} free in {label_of(directory)}"
        raise mismatch(name, "disk space", rule, f"{readable_bytes(free)}")


@contextlib.contextmanager
def one_process(name: str, directory: Path, downloads: Downloads) -> Iterator[None]:
    """Create a directory and lock it, so that only one process at a time works in it.

    Raises:
        CatalogError: The directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The lock file is never removed. Otherwise, a waiting process and a later process
        # could hold locks on different files.
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except (OSError, ValueError) as error:  # a NUL in the path raises ValueError
        raise unwritable(name, directory, error) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            downloads.note(f"{name}: waiting for another process that downloads it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def unwritable(name: str, directory: Path, error: Exception) -> CatalogError:
    """Return the error for a directory that cannot be written."""
    return mismatch(name, label_of(directory), "a writable directory", reason_of(error))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 hash of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
