"""Common steps of every download: report, consent, free space, one process at a time."""

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
        note: Called with one line before a download begins, and when it has to wait.
        progress: Called with the downloaded bytes and the total.
        allows: Called with a name and the bytes of a large download; returns whether to
            begin it.
    """

    note: Callable[[str], None] = lambda _line: None
    progress: Callable[[int, int], None] = lambda _done, _total: None
    allows: Callable[[str, int], bool] = lambda _name, _nbytes: False


def check_consent(name: str, nbytes: int, downloads: Downloads) -> None:
    """Ask before a large download.

    Raises:
        CatalogError: The download is not allowed.
    """
    if nbytes > LARGE_BYTES and not downloads.allows(name, nbytes):
        rule = f"consent to {readable_bytes(nbytes)} (--yes, or `allows` of Downloads)"
        raise mismatch(name, "download", rule, "none")


def check_space(name: str, directory: Path, nbytes: int) -> None:
    """Check that a directory, which may not exist yet, has room for a download.

    Raises:
        CatalogError: The disk space does not suffice.
    """
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        free = shutil.disk_usage(existing).free
    except OSError:  # the download itself reports the error
        return
    if free < nbytes:
        rule = f"{readable_bytes(nbytes)} free in {label_of(directory)}"
        raise mismatch(name, "disk space", rule, f"{readable_bytes(free)}")


@contextlib.contextmanager
def one_process(name: str, directory: Path, downloads: Downloads) -> Iterator[None]:
    """Create a directory, and let one process at a time work in it.

    Raises:
        CatalogError: The directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The file is kept. Without it a waiting process would hold another lock than the
        # next process.
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
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
    """Return the error of a directory that cannot be written."""
    return mismatch(name, label_of(directory), "a writable directory", reason_of(error))


def sha256_of(path: Path) -> str:
    """Return the hash of a file in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
