"""Model files as read-only memory.

Mapping a file costs nothing until its pages are touched, which is what lets a checkpoint of many
gigabytes open in milliseconds. Everything is decided on the open descriptor (`fstat`), never on the
path, so a file swapped between the check and the use cannot slip through.

The system gets no hints. With weights of 2.5 GB in the page cache (Linux 6.18, ext4), decoding was
as fast with MADV_HUGEPAGE, MADV_WILLNEED or MADV_POPULATE_READ as without: large folios are mapped
as such anyway. Populating ahead took as long as the first step then saved, from a thread beside it
too; and reading ahead from a cold disk gained nothing that could be told from noise.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

from ..outside import UnfitFileError, open_regular, read_whole, reason_of
from .errors import FileAccessError, FileChangedError, FileMemoryError, mismatch

__all__ = ["MappedFile", "read_small_file"]


class MappedFile:
    """One regular file mapped read-only.

    The mapping lives as long as this object or any tensor made from it. `close` lets go of it
    without pulling the memory from under such tensors.

    Args:
        path: file to map. An empty file is accepted; its `buffer` is then empty.

    Raises:
        FileAccessError: the path is missing, unreadable or not a regular file.
        FileMemoryError: the system has no addresses for it, as below a limit of the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = label_of(path)
        self.buffer: mmap.mmap | bytes = b""
        try:
            with open_regular(path) as stream:
                self._map(stream.fileno())
        except UnfitFileError as error:
            raise FileAccessError(f"{self.label}: {error}") from None
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOMEM:
                rule = f"{self.size} bytes of addresses"
                raise FileMemoryError(mismatch(self.label, "mapping", rule, "too few")) from None
            raise FileAccessError(f"{self.label}: cannot be mapped: {reason_of(error)}") from None

    def _map(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.size = status.st_size
        self._identity = _identity(status)
        if self.size:
            self.buffer = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)

    def bytes_at(self, start: int, stop: int) -> bytes:
        """Copy the bytes [start, stop), which must lie inside the file."""
        if not 0 <= start <= stop <= self.size:
            raise FileAccessError(
                mismatch(self.label, "byte range", f"inside 0..{self.size}", f"{start}..{stop}")
            )
        return self.buffer[start:stop]

    def check_unchanged(self) -> None:
        """Check that the bytes under the mapping are still those that were opened.

        A file that was *replaced* (a new file under the old name) is no fault: the mapping keeps
        the old one. A file that was truncated or rewritten in place is.

        Raises:
            FileChangedError: the mapped file has another size or a later time of change.
        """
        if isinstance(self.buffer, mmap.mmap) and self.buffer.size() < self.size:
            got = f"{self.buffer.size()} (truncated while in use)"
            raise FileChangedError(mismatch(self.label, "size in bytes", self.size, got))
        try:
            now = _identity(os.stat(self.path))
        except OSError:
            return
        if now[:2] == self._identity[:2] and now != self._identity:
            got = "another size or time of change (rewritten while in use)"
            raise FileChangedError(mismatch(self.label, "file", "unchanged since loading", got))

    def close(self) -> None:
        """Let go of the mapping; it ends when the last tensor made from it does."""
        buffer, self.buffer, self.size = self.buffer, b"", 0
        if isinstance(buffer, mmap.mmap):
            try:
                buffer.close()
            except BufferError:
                return  # Tensors still point into it: the last of them ends the mapping.


def read_small_file(path: Path, limit: int) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Args:
        path: file to read.
        limit: most bytes accepted.

    Returns:
        The content.

    Raises:
        FileAccessError: missing, unreadable, not a regular file, or larger than `limit`.
    """
    try:
        return read_whole(path, limit)
    except UnfitFileError as error:
        raise FileAccessError(f"{label_of(path)}: {error}") from None


def label_of(path: Path) -> str:
    """Show a path in an error: not printable characters escaped, nothing cut."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
