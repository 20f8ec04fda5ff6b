"""What can go wrong between text and token ids."""

from ..ml.errors import LlamaBoltsError

_SHOWN_CHARS = 80


class TokenizerError(LlamaBoltsError):
    """A tokenizer file that cannot be used, or a call with something that is no text or no id."""


class TokenizerNotFoundError(TokenizerError):
    """A directory that holds no tokenizer file at all."""


class TokenizerMemoryError(TokenizerError, MemoryError):
    """Memory for a tokenizer, a text or its ids that the system does not give."""


def shown(value: object) -> str:
    """Make text from outside fit for an error: no control characters, and not too long.

    Args:
        value: text or bytes.

    Returns:
        Printable text; whatever else was there is escaped as in a Python string.
    """
    if isinstance(value, bytes):
        text = value[: _SHOWN_CHARS + 1].decode("utf-8", errors="backslashreplace")
    else:
        text = str(value)
    cut = "..." if len(text) > _SHOWN_CHARS else ""
    return _escaped(text[:_SHOWN_CHARS]) + cut


def label(path: object) -> str:
    """Show a path in an error: escaped as by `shown`, and nothing cut."""
    return _escaped(str(path))


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def mismatch(path: object, what: str, expected: object, got: object) -> TokenizerError:
    """Form the error `<file>: <what>: expected X, got Y`.

    Args:
        path: the file; shown escaped.
        what: the part of it that is wrong.
        expected: what should be there.
        got: what is there; text from a file has to pass through `shown` first.
    """
    return TokenizerError(f"{label(path)}: {what}: expected {expected}, got {got}")
