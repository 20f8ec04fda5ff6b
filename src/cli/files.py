"""The files that commands of the chat read and write, named as a person types them."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from ..untrusted import UnfitFileError, label_of, read_whole
from .errors import UsageError

_QUOTES = ("'", '"')
_BINARY = "\0"


def named_path(argument: str) -> Path:
    """Return the path that was typed: `~` is the home directory, quotes around it are dropped.

    Raises:
        UsageError: nothing was typed.
    """
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in _QUOTES:
        argument = argument[1:-1]
    if not argument:
        raise UsageError("a name of a file is wanted: got nothing")
    with contextlib.suppress(RuntimeError):  # there is no such home directory
        return Path(argument).expanduser()
    return Path(argument)


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        UsageError: it is missing, unreadable, no regular file, or larger.
    """
    try:
        return read_whole(path, limit)
    except UnfitFileError as error:
        raise UsageError(f"{label_of(path)}: {error}") from None


def read_text(path: Path, limit: int) -> str:
    """Read a file of UTF-8 text, without the mark of its byte order.

    Raises:
        UsageError: as `read_bytes`, or it is not text.
    """
    content = read_bytes(path, limit)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{label_of(path)}: text: expected UTF-8, got other bytes at byte {error.start}"
        ) from None
    if _BINARY in text:
        raise UsageError(
            f"{label_of(path)}: text: expected text, got a zero at byte {content.index(0)}"
        )
    return text


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all: a new one takes the place of the old.

    A link is followed. A file that is new can be read by its owner alone.

    Raises:
        UsageError: it cannot be written; what was there is as before.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        descriptor, name = tempfile.mkstemp(prefix=".llama-bolts-", dir=target.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            if mode is not None:
                os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:  # Ctrl-C as well
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{label_of(path)}: cannot be written: {reason}") from None


def _mode(path: Path) -> int | None:
    """Return the permissions of a regular file; None where there is none."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return stat.S_IMODE(mode)
