"""Handle untrusted input: safe file access, strict JSON parsing, and safe printing."""

import contextlib
import errno
import io
import json
import math
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NoReturn, TypeGuard

_LONGEST = 80
_MOST_NAMES = 5
JSON_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
}
"""Names of JSON types, for error messages."""
# File type descriptions, keyed by the first letter of the mode that `ls` prints.
_KINDS = {
    "p": "a FIFO",
    "s": "a socket",
    "c": "a character device",
    "b": "a block device",
}
_LEAST_READ = 1 << 16
# Git LFS pointers are smaller than this.
_GIT_LFS_BYTES = 1024
_GIT_LFS_VERSION = b"version https://git-lfs"
_GIT_LFS_ADVICE = (
    "kind: expected the file itself, got a Git LFS pointer to it; `git lfs pull` in its "
    "directory downloads it"
)
_MOST_DIGITS = 32
_MOST_VALUES = 1 << 20
# Weights of the values that each of these characters introduces, based on memory use.
_WEIGHTS = {b",": 1, b"[": 1, b":": 2, b"{": 4}

# Control characters are escaped, and are never sent to a terminal. Text from a model, a
# tensor name or a path may contain any character. Some characters move the cursor, change
# the terminal's colours or title, insert keyboard input, reorder text, or hide text that
# is then copied unseen. Each character is escaped separately, so an escape sequence that
# is split over several tokens is harmless too: without its first character, the rest is
# plain text.

# C0 and C1 control characters and DEL, line and paragraph separators, and bidirectional
# controls: marks (061C, 200E, 200F), embeddings and overrides (202A-202E), and isolates
# (2066-2069). Source: Unicode 15.0, DerivedBidiClass.txt and chapter 23.2.
_MOVING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"

# Invisible characters, which could encode hidden text: the other default-ignorable
# characters, including tags (E0001-E007F) and supplementary variation selectors
# (E0100-E01EF), the annotation marks (FFF9-FFFB), and the 66 noncharacters, two of which
# XML forbids. The zero-width joiner and non-joiner (200C, 200D) and the variation
# selectors 180B-180F and FE00-FE0F are not escaped, because emoji and scripts used in
# India, Iran and Mongolia need them. The flag emoji for England, Scotland and Wales are
# escaped, because they contain tags. Source: Unicode 15.0, DerivedCoreProperties.txt,
# Default_Ignorable_Code_Point.
_INVISIBLE = (
    r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164"
    r"\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
)
_NONCHARACTERS = r"\ufdd0-\ufdef" + "".join(
    f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17)
)
_CONTROLS = f"[{_MOVING}{_INVISIBLE}{_NONCHARACTERS}]"
_UNSAFE = re.compile(_CONTROLS)
_UNSAFE_IN_ONE_LINE = re.compile(_CONTROLS + r"|[\n\t]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def shown(text: str) -> str:
    """Quote and escape a string from a file, shortened to 80 characters with `...`."""
    escaped = _escaped(text[:_LONGEST].replace("\\", "\\\\"))
    if len(escaped) > _LONGEST or len(text) > _LONGEST:
        escaped = escaped[: _LONGEST - 3] + "..."
    return f"'{escaped}'"


def described(value: object) -> str:
    """Describe a value from a file, for an error message.

    A string is formatted by `shown`, a container is described by its type, and any other
    value is formatted as JSON.
    """
    if isinstance(value, str):
        return shown(value)
    if value is None or isinstance(value, int | float):
        return json.dumps(value)
    return JSON_KINDS.get(type(value), f"a value of type {type(value).__name__}")


def label_of(path: Path) -> str:
    """Return a path for an error message, with unprintable characters escaped.

    The path is not truncated.
    """
    return _escaped(str(path))


def some_of(
    names: Collection[str], show: Callable[[str], str] = shown, most: int = _MOST_NAMES
) -> str:
    """List the first `most` names and the total number, such as `'a', 'b' (2 in all)`."""
    head = ", ".join(show(name) for name in list(names)[:most])
    more = ", ..." if len(names) > most else ""
    return f"{head}{more} ({len(names)} in all)"


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def open_regular(path: Path, error: type[Exception]) -> io.FileIO:
    """Open a regular file for unbuffered reading, or raise `error`.

    The file type is checked on the open descriptor instead of the path, so replacing the
    file cannot bypass the check. Git LFS pointers, which replace large files in a clone
    without Git LFS, are rejected here, so that the message is the same for all model
    files.
    """
    kind = "a directory"
    try:
        # O_NONBLOCK keeps a FIFO without a writer from blocking.
        no_wait = getattr(os, "O_NONBLOCK", 0)
        with contextlib.ExitStack() as stack:
            stream = io.FileIO(
                path, opener=lambda name, flags: os.open(name, flags | no_wait)
            )
            stack.callback(stream.close)
            mode = os.fstat(stream.fileno()).st_mode
            if stat.S_ISREG(mode):
                if _is_git_lfs_pointer(stream):
                    raise error(f"{label_of(path)}: {_GIT_LFS_ADVICE}")
                stack.pop_all()
                return stream
            kind = _KINDS.get(stat.filemode(mode)[0], "a special file")
    except IsADirectoryError:
        pass
    except (OSError, ValueError) as reason:
        raise error(f"{label_of(path)}: cannot be opened: {reason_of(reason)}") from None
    raise error(f"{label_of(path)}: kind: expected a regular file, got {kind}")


def _is_git_lfs_pointer(stream: io.FileIO) -> bool:
    """Return whether a file is a Git LFS pointer, based on its size and first line.

    The position must be 0, and is restored. Source: git-lfs, docs/spec.md, "The Pointer".
    """
    if os.fstat(stream.fileno()).st_size >= _GIT_LFS_BYTES:
        return False
    head = stream.read(len(_GIT_LFS_VERSION))
    stream.seek(0)
    return head == _GIT_LFS_VERSION


def followed_inside(path: Path, error: type[Exception], *directories: Path) -> Path:
    """Resolve all links in a path, and raise `error` unless a directory contains it."""
    real = [Path(os.path.realpath(directory)) for directory in directories]
    # In the Hugging Face Hub cache, files in `snapshots/<revision>` are links to files in
    # `blobs`, next to `snapshots`. `blobs` itself is not resolved, because it could be a
    # link to another directory.
    real += [
        parent.parent / "blobs"
        for directory in real
        for parent in (directory.parent, directory.parent.parent)
        if parent.name == "snapshots"
    ]
    target = Path(os.path.realpath(path))
    if not any(map(target.is_relative_to, real)):
        rule = "a file inside its directory, got a link that leads elsewhere"
        raise error(f"{label_of(path)}: link: expected {rule}")
    return target


def read_whole(path: Path, limit: int, error: type[Exception]) -> bytes:
    """Return the content of a regular file, or raise `error` above `limit` bytes."""
    label = label_of(path)
    with open_regular(path, error) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise error(
                    f"{label}: size: expected at most {limit} bytes, got {size} bytes"
                )
            content = _read_up_to(stream, size, limit + 1)
        except OSError as reason:
            raise error(f"{label}: cannot be read: {reason_of(reason)}") from None
    if len(content) > limit:
        raise error(f"{label}: size: expected at most {limit} bytes, got more")
    if len(content) < size:
        raise error(f"{label}: size: expected {size} bytes, got only {len(content)}")
    return content


def read_json_object(
    path: Path, limit: int, error: type[Exception], most_values: int = _MOST_VALUES
) -> dict[str, object]:
    """Read a JSON file that contains one object, or raise `error`.

    `parse_strict_json` defines which JSON is accepted.
    """
    content = read_whole(path, limit, error)
    label = label_of(path)
    try:
        value = parse_strict_json(content, most_values)
    except ValueError as reason:
        raise error(f"{label}: content: {reason}") from None
    if not isinstance(value, dict):
        raise error(f"{label}: content: expected a JSON object, got {described(value)}")
    return value


def write_whole(
    path: Path,
    parts: Iterable[bytes | memoryview],
    error: type[Exception],
    is_private: bool = True,
) -> None:
    """Write a file atomically, replacing an existing file.

    Args:
        path: The file. If it is a link, the target is replaced.
        parts: The content, in parts.
        error: The exception to raise if the file cannot be written.
        is_private: Whether a new file is readable only by its owner. An existing file
            keeps its permissions.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = os.stat(target).st_mode if os.path.lexists(target) else None
        if mode is not None and not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if mode is None and not is_private:
            umask = os.umask(0)
            os.umask(umask)
            mode = 0o666 & ~umask
        descriptor, name = tempfile.mkstemp(prefix=".llama-bolts-", dir=target.parent)
        try:
            with open(descriptor, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(descriptor)
            if mode is not None:
                os.chmod(name, stat.S_IMODE(mode))
            os.replace(name, target)
        except BaseException:  # including KeyboardInterrupt
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except (OSError, ValueError) as failure:  # ValueError if the path contains NUL
        raise error(
            f"{label_of(path)}: cannot be written: {reason_of(failure)}"
        ) from None


def check_writable(path: Path, error: type[Exception]) -> None:
    """Raise `error` if `write_whole` would fail to write a file.

    This allows a long computation to fail early. An existing file is neither opened nor
    changed.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.lexists(target) and not target.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")
        tempfile.TemporaryFile(dir=target.parent).close()
    except (OSError, ValueError) as failure:  # ValueError if the path contains NUL
        raise error(
            f"{label_of(path)}: cannot be written: {reason_of(failure)}"
        ) from None


def reason_of(error: Exception) -> str:
    """Return the operating system's reason, without the unescaped path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return shown(str(error))


def _read_up_to(stream: io.FileIO, size: int, most: int) -> bytes:
    """Read up to `most` bytes from a file whose reported size is `size`.

    Unlike a single `read`, this only stops at the limit or at the end of the file.
    """
    parts = []
    count = 0
    while part := stream.read(min(most - count, max(size + 1 - count, _LEAST_READ))):
        parts.append(part)
        count += len(part)
    return b"".join(parts)


def parse_strict_json(content: bytes, most_values: int = _MOST_VALUES) -> object:
    """Parse JSON in UTF-8, and reject values that are ambiguous or too large.

    Because a value of three characters can take 70 bytes of memory, values are counted
    before any is created. An object counts as four values, and a key as two.

    Raises:
        ValueError: The content is not valid JSON, has too many values, or contains a
            duplicate key, a non-finite number, an integer with too many digits, or deep
            nesting. The message has the form `expected X, got Y`, and is safe to print.
    """
    if _weight_of(content) > most_values:
        weight = _weight_outside_texts(content)
        if weight > most_values:
            raise ValueError(
                f"expected at most {most_values} values, where an object counts four "
                f"times and a key twice, got {weight}"
            )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"expected UTF-8, got an invalid byte at offset {error.start}"
        ) from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_number,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ValueError(
            f"expected JSON, got something else at {where} ({error.msg})"
        ) from None
    except RecursionError:
        raise ValueError("expected a few levels of nesting, got very many") from None


def _weight_of(content: bytes) -> int:
    """Return the weighted count of the characters that introduce values."""
    return sum(weight * content.count(mark) for mark, weight in _WEIGHTS.items())


def _weight_outside_texts(content: bytes) -> int:
    """Return the same as `_weight_of`, but ignore characters inside strings."""
    import numpy as np  # imported here so that `--help` does not load NumPy

    unescaped = content.replace(rb"\\", b"").replace(rb"\"", b"")
    weight = 0
    is_in_text = False
    for start in range(0, len(unescaped), _LEAST_READ):
        part = np.frombuffer(unescaped[start : start + _LEAST_READ], np.uint8)
        in_text = np.logical_xor.accumulate(part == ord('"')) ^ is_in_text
        weight += _weight_of(part[~in_text].tobytes())
        is_in_text = bool(in_text[-1])
    return weight


def is_same_json(value: object, expected: object) -> bool:
    """Return whether two JSON values are equal in value and type (64.0 is not 64)."""
    return json.dumps(value, sort_keys=True) == json.dumps(expected, sort_keys=True)


def is_integer(value: object, low: int, high: int) -> TypeGuard[int]:
    """Return whether a value is an integer in low..high, excluding `true` and `1.0`."""
    return type(value) is int and low <= value <= high


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"expected each key once, got {shown(twice)} twice")
    return result


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"expected a finite number, got {text}")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"expected at most {_MOST_DIGITS} digits, got {len(text)}")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {shown(text)}")
    return value


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which represent invalid UTF-8 bytes, with U+FFFD.

    Source: PEP 383.
    """
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_controls(text: str) -> str:
    r"""Escape control characters, such as `\x1b`, so that text is safe to print.

    Newlines and tabs are kept. The result can be printed in parts.
    """
    return _UNSAFE.sub(_escape_control, replace_surrogates(text))


def escape_line(text: str, limit: int | None = None) -> str:
    r"""Escape text so that it is safe to print on one line.

    Text longer than `limit` characters is truncated with an ellipsis.
    """
    line = _UNSAFE_IN_ONE_LINE.sub(_escape_control, replace_surrogates(text))
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def json_controls(text: str) -> str:
    r"""Escape control characters in JSON as in `\u009b`, so that it is safe to print."""
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _escape_control(match: re.Match[str]) -> str:
    return r"\x0d" if match[0] == "\r" else ascii(match[0])[1:-1]
