"""Finding the one prompt of a run that is no chat."""

import sys

from .arguments import Options
from .errors import UsageError
from .reader import decode_input


def find_prompt(options: Options) -> str | None:
    """Return the prompt that this run is to answer, or None for a chat.

    It is given with `-p`, in a file, or on standard input, which is read when it is no terminal.
    One newline at the end of a file or of standard input is not part of the prompt.

    Args:
        options: the command line.

    Raises:
        UsageError: the file cannot be read, or the prompt is empty.
    """
    if options.prompt is not None:
        where, prompt = "--prompt", options.prompt
    elif options.file is not None:
        where, prompt = str(options.file), _read_file(options)
    elif options.standard_input or not standard_input_is_terminal():
        where, prompt = "standard input", _read_standard_input()
    else:
        return None
    if not prompt.strip():
        raise UsageError(f"{where}: prompt: expected text, got none")
    return prompt


def standard_input_is_terminal() -> bool:
    """Return whether a person can type; false where standard input is closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def _read_file(options: Options) -> str:
    assert options.file is not None
    try:
        return _without_last_newline(decode_input(options.file.read_bytes()))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{options.file}: prompt: expected a readable file, got {reason}"
        ) from None


def _read_standard_input() -> str:
    if sys.stdin is None:
        return ""
    try:
        return _without_last_newline(decode_input(sys.stdin.buffer.read()))
    except OSError as error:
        raise UsageError(f"standard input: expected text, got {error.strerror}") from None


def _without_last_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
