"""Tokens as a person reads them: ids, bytes and pieces of text."""

from collections.abc import Sequence

from ..tokenizer import Tokenizer
from .escape import escape_line


def piece(tokenizer: Tokenizer, token: int) -> str:
    r"""Return a token as text between quotes; bytes that are no whole character stand as `\xe2`.

    A special token is its name alone.
    """
    if tokenizer.is_special(token):
        return tokenizer.decode([token])
    text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    return f"'{escape_line(text)}'"


def token_table(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return a line per token: its place, id, bytes and text."""
    rows = [("", "id", "bytes", "text")]
    for place, token in enumerate(ids):
        shown_bytes = tokenizer.token_bytes(token).hex(" ")
        if tokenizer.is_special(token):
            shown_bytes = "special"
        rows.append((str(place), str(token), shown_bytes, piece(tokenizer, token)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{place:>{widths[0]}}  {token:>{widths[1]}}  {shown:<{widths[2]}}  {text}"
        for place, token, shown, text in rows
    )
