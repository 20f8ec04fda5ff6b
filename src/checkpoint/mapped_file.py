"""Model files as read-only memory.

Mapping a file costs nothing until its pages are touched, which is what lets a checkpoint
of many gigabytes open in milliseconds.

The system gets no hints: MADV_HUGEPAGE, MADV_WILLNEED and MADV_POPULATE_READ made
decoding no faster, and reading ahead from a cold disk gained nothing that could be told
from noise (2.5 GB of weights, Linux 6.18, ext4).
"""

import contextlib
import errno
import hashlib
import mmap
import os
from pathlib import Path
from typing import NoReturn

from ..untrusted import label_of, open_regular, reason_of
from .errors import CheckpointError, FileMemoryError, mismatch

_HEAD_BYTES = 512
# of a file, to tell it from another one
_SAMPLE_BYTES = 4096
_SAMPLES = 1024
# Offset, bytes there, and what a file is that has them.
_KINDS = (
    (0, b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"\x93NUMPY", "a NumPy .npy file"),
    (0, b"GGUF", "a GGUF file"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (
        0,
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9",
        "a PyTorch file from before the zip format",
    ),
    (257, b"ustar", "a tar file, PyTorch's oldest format"),
    (8, b'{"', "a safetensors file"),
    (0, b"\x80", "a bare pickle"),
    (0, b"<", "a text file that starts with '<', perhaps an error page"),
)


class MappedFile:
    """One regular file mapped read-only, as long as it or any tensor made from it lives.

    Raise FileMemoryError where the address space is too small, as below a limit of the
    process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = label_of(path)
        self.buffer: mmap.mmap | bytes = b""
        try:
            with open_regular(path, CheckpointError) as stream:
                self._identity = _identity(os.fstat(stream.fileno()))
                self.size = self._identity[2]
                if self.size:
                    self.buffer = mmap.mmap(
                        stream.fileno(), self.size, access=mmap.ACCESS_READ
                    )
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOMEM:
                text = f"mapping: expected {self.size} bytes of address space, got less"
                raise FileMemoryError(f"{self.label}: {text}") from None
            raise CheckpointError(
                f"{self.label}: cannot be mapped: {reason_of(error)}"
            ) from None

    def bytes_at(self, start: int, stop: int) -> bytes:
        """Copy the bytes [start, stop), which must be inside the file."""
        if not 0 <= start <= stop <= self.size:
            self.refuse("byte range", f"inside 0..{self.size}", f"{start}..{stop}")
        return self.buffer[start:stop]

    def refuse(self, what: str, expected: object, got: object) -> NoReturn:
        """Raise the error for what is wrong with the file."""
        raise mismatch(self.label, what, expected, got)

    def kind(self) -> str:
        """Name the kind of the file by its first bytes, or give eight of them, for an
        error.
        """
        head = self.buffer[:_HEAD_BYTES]
        if not head:
            return "an empty file"
        for offset, magic, description in _KINDS:
            if head[offset : offset + len(magic)] == magic:
                return description
        return f"bytes {head[:8].hex(' ')}"

    def check_unchanged(self) -> None:
        """Refuse a file that was truncated or rewritten in place; a replaced one stays
        mapped.
        """
        if isinstance(self.buffer, mmap.mmap) and self.buffer.size() < self.size:
            got = f"{self.buffer.size()} (truncated while in use)"
            self.refuse("size in bytes", self.size, got)
        try:
            now = _identity(os.stat(self.path))
        except OSError:
            return
        if now[:2] == self._identity[:2] and now != self._identity:
            got = "another size or time of change (rewritten while in use)"
            self.refuse("file", "unchanged since loading", got)

    def close(self) -> None:
        """Let go of the mapping; it ends when the last tensor made from it does."""
        buffer = self.buffer
        self.buffer = b""
        self.size = 0
        if isinstance(buffer, mmap.mmap):
            with contextlib.suppress(
                BufferError
            ):  # the last of its tensors ends the mapping
                buffer.close()


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def file_fingerprint(path: Path, error: type[Exception] = CheckpointError) -> str:
    """Return the size of a weight file and a hash of it, above 4 MiB of 1024 samples."""
    digest = hashlib.sha256()
    with open_regular(path, error) as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, max(size // _SAMPLES, _SAMPLE_BYTES)):
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, start))
    return f"{size} bytes, {digest.hexdigest()[:16]}"
