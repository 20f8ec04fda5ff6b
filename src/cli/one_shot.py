"""The prompts of a run that is not a chat: one, or with `--jsonl` one on each line of a file."""

import codecs
import fcntl
import sys
import termios
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from ..checkpoint import CheckpointError
from ..inference import Message, as_messages
from ..memory import readable_bytes
from ..ml.errors import LlamaBoltsError
from ..untrusted import described, label_of, parse_strict_json, reason_of
from .arguments import Options
from .console import Console
from .errors import UsageError
from .escape import replace_surrogates
from .loading import open_session
from .session import Session

# A million tokens of prose: more than a context holds, and not worth the time to count exactly.
MOST_PROMPT_BYTES = 4 << 20
_EXPECTED = 'a text, or an object with "prompt" or "messages" alone'


def find_prompt(options: Options, console: Console) -> str | None:
    """Return the prompt that this run is to answer, or None for a chat.

    It is given with `-p`, in a file, or on standard input, which is read when it is not a terminal.
    One newline at the end of a file or of standard input is not part of the prompt. A file must be
    UTF-8; on standard input other bytes become U+FFFD, and a warning counts them.

    Args:
        options: The command line.
        console: Takes the warning.

    Raises:
        UsageError: The file cannot be read or is not text, or the prompt is empty or far too long;
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
        raise UsageError(
            f"{path}: prompt: expected a readable file, got {reason_of(error)}"
        ) from None


def _read_standard_input(console: Console) -> str:
    if sys.stdin is None:
        return ""
    try:
        content = _read_limited(sys.stdin.buffer, "standard input")
    except OSError as error:
        raise UsageError(f"standard input: expected text, got {error.strerror}") from None
    text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
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


def answer_file(options: Options, console: Console) -> None:
    """Answer each line of a file by itself; one that cannot be answered is one line of error.

    A line holds a JSON string, `{"prompt": "..."}` or `{"messages": [{"role": ..., "content":
    ...}]}`. The system prompt of the command line goes before messages that have none. Blank lines
    are passed over. Lines are read as they are needed, so that the file may be a pipe.

    Args:
        options: The command line.
        console: Takes the records and the errors.

    Raises:
        UsageError: The file cannot be read or holds no line, or a line had no answer, which is
            raised after the last one.
        KeyboardInterrupt: Ctrl-C in an answer, which has its record.
        LlamaBoltsError: As `open_session`, or the model's files were changed.
    """
    path = options.jsonl
    assert path is not None
    name = "standard input" if str(path) == "-" else label_of(path)
    session = None
    done = failed = 0
    for number, line in _lines(path, name):
        if session is None:
            session = open_session(options, console)
        done += 1
        try:
            answer = session.answer_apart(_request(session, line), number)
        except CheckpointError:
            raise
        except (ValueError, LlamaBoltsError) as error:
            failed += 1
            console.error(f"{name}: line {number}: {error}")
            continue
        if not answer.is_complete:
            raise KeyboardInterrupt
    if failed or not done:
        got = f"{failed} of {done} without one" if done else "no lines"
        raise UsageError(f"{name}: prompts: expected an answer to each line, got {got}")


def _lines(path: Path, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not blank, counted from 1; the beginning of one that is too long."""
    number = 0
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == "-" else open(path, "rb") as file:
            while line := file.readline(MOST_PROMPT_BYTES + 1):
                number += 1
                if line.strip():
                    yield number, line
                while line and not line.endswith(b"\n"):
                    line = file.readline(MOST_PROMPT_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(
            f"{name}: prompts: expected a readable file, got {reason_of(error)}"
        ) from None


def _request(session: Session, line: bytes) -> str | list[Message]:
    """Return what a line asks: a text to continue, or a conversation.

    Raises:
        ValueError, ChatFormatError: It is not what is expected.
    """
    if len(line) > MOST_PROMPT_BYTES:
        raise ValueError(f"expected at most {readable_bytes(MOST_PROMPT_BYTES)}, got more")
    found = parse_strict_json(line)
    asked = {"prompt": found} if isinstance(found, str) else found
    if not isinstance(asked, dict) or len(asked) != 1 or asked.keys() - {"prompt", "messages"}:
        raise ValueError(f"expected {_EXPECTED}, got {described(asked)}")
    if "messages" in asked:
        if session.completion:
            raise ValueError("expected a prompt, since texts are continued, got messages")
        messages = [
            Message(m.role, replace_surrogates(m.content)) for m in as_messages(asked["messages"])
        ]
        if messages[0].role == "system":
            return messages
        return [*session.messages([]), *messages]
    prompt = asked["prompt"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"prompt: expected a text, got {described(prompt)}")
    prompt = replace_surrogates(prompt)
    return prompt if session.completion else session.messages([], prompt)
