"""Text from outside in errors: it can neither move the cursor nor fill the screen."""

_LONGEST = 80


def shown(text: str) -> str:
    """Quote text from a file for display: not printable characters escaped, at most 80 characters.

    Args:
        text: any text. Only text: to print a container from a hostile file could recurse.

    Returns:
        The text between single quotes, cut with `...` where it is too long.
    """
    head = text[:_LONGEST]
    escaped = "".join(c if c.isprintable() and c != "\\" else ascii(c)[1:-1] for c in head)
    if len(escaped) > _LONGEST or len(text) > _LONGEST:
        escaped = escaped[: _LONGEST - 3] + "..."
    return f"'{escaped}'"
