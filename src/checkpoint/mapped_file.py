"""Map model files into memory, read-only.

Mapping a file costs nothing until its pages are accessed, so even a checkpoint of many
gigabytes opens in milliseconds.

`madvise` is not used: MADV_HUGEPAGE, MADV_WILLNEED and MADV_POPULATE_READ did not make
decoding faster, and reading ahead from a cold disk had no measurable effect (2.5 GB of
weights, Linux 6.18, ext4).
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
# Size and number of the samples that a file fingerprint hashes.
_SAMPLE_BYTES = 4096
_SAMPLES = 1024
# (offset, bytes at that offset, description of the file type)
_KINDS = (
    (0, b"PK\x03\x04", "a zip archive, possibly a PyTorch checkpoint"),
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
    (0, b"<", "a text file that starts with '<', possibly an error page"),
)


class MappedFile:
    """A regular file that stays mapped until it and all tensors in it are released.

    Raises:
        FileMemoryError: The address space is too small, for example because of a process
            limit.
        CheckpointError: The file cannot be read.
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
                f"{self.label}: mapping: expected a readable file, got {reason_of(error)}"
            ) from None

    def bytes_at(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes [start, stop), which must be inside the file."""
        if not 0 <= start <= stop <= self.size:
            self.refuse("byte range", f"inside 0..{self.size}", f"{start}..{stop}")
        return self.buffer[start:stop]

    def refuse(self, key: str, expected: object, actual: object) -> NoReturn:
        """Raise a CheckpointError about a part of the file."""
        raise mismatch(self.label, key, expected, actual)

    def kind(self) -> str:
        """Describe the file type, based on the first bytes, for an error message.

        If the type is unknown, the description shows these bytes.
        """
        head = self.buffer[:_HEAD_BYTES]
        if not head:
            return "an empty file"
        for offset, magic, description in _KINDS:
            if head[offset : offset + len(magic)] == magic:
                return description
        return f"bytes {head[:8].hex(' ')}"

    def check_unchanged(self) -> None:
        """Raise a CheckpointError if the file has been truncated or rewritten in place.

        A file that has been replaced is accepted, because the old file stays mapped.
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
        """Release the mapping, which ends when its last tensor is released."""
        buffer = self.buffer
        self.buffer = b""
        self.size = 0
        if isinstance(buffer, mmap.mmap):
            with contextlib.suppress(BufferError):  # tensors still use the mapping
                buffer.close()


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def file_fingerprint(path: Path, error: type[Exception] = CheckpointError) -> str:
    """Return the size of a file, and a hash of its content.

    For a file larger than 4 MiB, only 1,024 samples are hashed.
    """
    digest = hashlib.sha256()
    with open_regular(path, error) as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, max(size // _SAMPLES, _SAMPLE_BYTES)):
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, start))
    return f"{size} bytes, {digest.hexdigest()[:16]}"
