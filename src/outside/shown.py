"""Text from outside in errors: it can neither move the cursor nor fill the screen."""

from pathlib import Path

_LONGEST = 80


def shown(text: str) -> str:
    """Quote text from a file for display: not printable characters escaped, at most 80 characters.

    Args:
        text: Any text. Only text: to print a container from a hostile file could recurse.

    Returns:
        The text between single quotes, cut with `...` where it is too long.
    """
    escaped = _escaped(text[:_LONGEST].replace("\\", "\\\\"))
    if len(escaped) > _LONGEST or len(text) > _LONGEST:
        escaped = escaped[: _LONGEST - 3] + "..."
    return f"'{escaped}'"


def described(value: object) -> str:
    """Show a value from a file: text as by `shown`, a number as it is, anything else by its type.

    Args:
        value: Any value; integers of at most 4300 digits, which is what Python writes.
    """
    if isinstance(value, str):
        return shown(value)
    if value is None or isinstance(value, int | float):
        return str(value)
    return f"a value of type {type(value).__name__}"


def label_of(path: Path) -> str:
    """Show a path in an error: not printable characters escaped, nothing cut."""
    return _escaped(str(path))


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
