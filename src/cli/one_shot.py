"""Finding the one prompt of a run that is not a chat."""

import codecs
import fcntl
import sys
import termios
from pathlib import Path
from typing import BinaryIO

from ..memory import readable_bytes
from .arguments import Options
from .console import Console
from .errors import UsageError
from .reader import decode_input

# A million tokens of prose: more than a context holds, and not worth the time to count exactly.
MOST_PROMPT_BYTES = 4 << 20


def find_prompt(options: Options, console: Console) -> str | None:
    """Return the prompt that this run is to answer, or None for a chat.

    It is given with `-p`, in a file, or on standard input, which is read when it is not a terminal.
    One newline at the end of a file or of standard input is not part of the prompt. A file must be
    UTF-8; on standard input other bytes become U+FFFD, and a warning counts them.

    Args:
        options: the command line.
        console: takes the warning.

    Raises:
        UsageError: the file cannot be read or is not text, or the prompt is empty or far too long;
            or text waits on standard input beside a prompt.
    """
    if options.prompt is not None:
        where, prompt = "--prompt", options.prompt
    elif options.file is not None:
        where, prompt = str(options.file), _read_file(options.file)
    elif options.standard_input or not standard_input_is_terminal():
        where, prompt = "standard input", _read_standard_input(console)
    else:
        return None
    if where != "standard input":
        _refuse_waiting_input(where)
    if not prompt.strip():
        raise UsageError(f"{where}: prompt: expected text, got none")
    return prompt


def standard_input_is_terminal() -> bool:
    """Return whether a person can type; false where standard input is closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def _refuse_waiting_input(where: str) -> None:
    """Refuse text that nobody would read; text that comes later is not waited for."""
    if sys.stdin is None or sys.stdin.isatty():
        return
    try:
        waiting = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
    except OSError:  # nothing that can hold text, such as /dev/null
        return
    if any(waiting):
        raise UsageError(
            f"standard input: expected nothing beside {where}, got text; < /dev/null leaves it out"
        )


def _read_file(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = _read_limited(file, str(path))
        return _without_last_newline(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: prompt: expected UTF-8, got other bytes at byte {error.start}"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path}: prompt: expected a readable file, got {reason}") from None


def _read_standard_input(console: Console) -> str:
    if sys.stdin is None:
        return ""
    try:
        content = _read_limited(sys.stdin.buffer, "standard input")
    except OSError as error:
        raise UsageError(f"standard input: expected text, got {error.strerror}") from None
    text = decode_input(content.removeprefix(codecs.BOM_UTF8))
    replaced = text.count("\N{REPLACEMENT CHARACTER}") - content.count(b"\xef\xbf\xbd")
    if replaced:
        console.warn(f"standard input: expected UTF-8, got {replaced} parts that are not: U+FFFD")
    return _without_last_newline(text)


def _read_limited(stream: BinaryIO, where: str) -> bytes:
    """Read to the end, unless it does not come within reason."""
    content = stream.read(MOST_PROMPT_BYTES + 1)
    if len(content) > MOST_PROMPT_BYTES:
        limit = readable_bytes(MOST_PROMPT_BYTES)
        raise UsageError(f"{where}: prompt: expected at most {limit}, got more")
    return content


def _without_last_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
