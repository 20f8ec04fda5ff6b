"""Regular files, opened for reading: the one place that opens the files of a model."""

import io
import os
import stat
from pathlib import Path

from .shown import shown

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_LEAST_READ = 1 << 16


class UnfitFileError(Exception):
    """A file that cannot be used; the text says why, without its name, and is safe to show."""


def open_regular(path: Path) -> io.FileIO:
    """Open a regular file for reading, unbuffered.

    What it is, is decided on the open descriptor, never on the path: a file swapped between the
    check and the use cannot slip through.

    Args:
        path: the file.

    Returns:
        The open file. It closes itself when nothing holds it any more, as after an interrupt.

    Raises:
        UnfitFileError: missing, unreadable, or not a regular file.
    """
    try:
        stream = io.FileIO(path, opener=_open_without_waiting)
        mode = os.fstat(stream.fileno()).st_mode
    except IsADirectoryError:
        raise UnfitFileError("kind: expected a regular file, got a directory") from None
    except (OSError, ValueError) as error:
        raise UnfitFileError(f"cannot be opened: {reason_of(error)}") from None
    if not stat.S_ISREG(mode):
        stream.close()
        found = next((text for test, text in _KINDS if test(mode)), "a special file")
        raise UnfitFileError(f"kind: expected a regular file, got {found}")
    return stream


def followed_inside(path: Path, *directories: Path) -> Path:
    """Return where the links of a path lead, which must be a part of a model.

    That is its directories and, where one of them lies in the cache of Hugging Face's hub, its
    `blobs`: there a directory `snapshots/<revision>` holds links into `blobs` beside `snapshots`.

    Args:
        path: A file of the model.
        directories: The directories of the model.

    Raises:
        UnfitFileError: It leads elsewhere.
    """
    real = [Path(os.path.realpath(directory)) for directory in directories]
    # Not resolved further: `blobs` could itself be a link.
    real += [
        parent.parent / "blobs"
        for directory in real
        for parent in (directory.parent, directory.parent.parent)
        if parent.name == "snapshots"
    ]
    target = Path(os.path.realpath(path))
    if not any(map(target.is_relative_to, real)):
        raise UnfitFileError("expected inside its directory, got a link that leads elsewhere")
    return target


def read_whole(path: Path, limit: int) -> bytes:
    """Read a whole regular file of at most `limit` bytes, also where the system gives it in parts.

    Args:
        path: The file.
        limit: Most bytes accepted.

    Raises:
        UnfitFileError: As `open_regular`, or it is larger, or cannot be read to its end.
    """
    with open_regular(path) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise UnfitFileError(f"size: expected at most {limit} bytes, got {size} bytes")
            content = _read_up_to(stream, size, limit + 1)
        except OSError as error:
            raise UnfitFileError(f"cannot be read: {reason_of(error)}") from None
    if len(content) > limit:
        raise UnfitFileError(f"size: expected at most {limit} bytes, got more")
    if len(content) < size:
        raise UnfitFileError(f"size: expected {size} bytes, got {len(content)} and then the end")
    return content


def reason_of(error: Exception) -> str:
    """Say why the system refused, without the path that its message would repeat unescaped."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return shown(str(error))


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; O_NONBLOCK keeps a FIFO without a writer from blocking."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_up_to(stream: io.FileIO, size: int, most: int) -> bytes:
    """Read to the end of a file or to `most` bytes; `size` is what it is said to have."""
    parts: list[bytes] = []
    have = 0
    while have < most:
        part = stream.read(min(most - have, max(size + 1 - have, _LEAST_READ)))
        if not part:
            break
        parts.append(part)
        have += len(part)
    return b"".join(parts)
