"""`--jsonl`: prompts from a file of JSON lines, each answered with a record."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from ..checkpoint import CheckpointError
from ..inference import Message, as_messages
from ..memory import readable_bytes
from ..ml.errors import LlamaBoltsError
from ..untrusted import label_of, parse_strict_json
from .arguments import Options
from .console import Console
from .errors import UsageError
from .escape import replace_surrogates
from .loading import open_session
from .one_shot import MOST_PROMPT_BYTES
from .saved_chat import described
from .session import Session

_EXPECTED = 'a text, or an object with "prompt" or "messages" alone'


def answer_file(options: Options, console: Console) -> None:
    """Answer each line of a file by itself; one that cannot be answered is one line of error.

    A line holds a JSON string, `{"prompt": "..."}` or `{"messages": [{"role": ..., "content":
    ...}]}`. The system prompt of the command line goes before messages that have none. Blank lines
    are passed over. Lines are read as they are needed, so that the file may be a pipe.

    Args:
        options: the command line.
        console: takes the records and the errors.

    Raises:
        UsageError: the file cannot be read or holds no line, or a line had no answer, which is
            raised after the last one.
        KeyboardInterrupt: Ctrl-C in an answer, which has its record.
        LlamaBoltsError: as `open_session`, or the model's files were changed.
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
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{name}: prompts: expected a readable file, got {reason}") from None


def _request(session: Session, line: bytes) -> str | list[Message]:
    """Return what a line asks: a text to continue, or a conversation.

    Raises:
        ValueError, ChatFormatError: it is not what is expected.
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
