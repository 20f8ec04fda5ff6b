"""Tables of a report, as wide as their cells or folded into a narrow window."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .escape import escape_line

# rich takes a while to load; an answer to a pipe needs nothing of it.
if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Columns = Sequence[tuple[str, str]]
Rows = Sequence[Sequence[str]]
_NARROWEST = 20  # characters in which two columns can still be read side by side
_GAP = 2  # blanks between columns, and before what stands below a name


def table(columns: Columns, rows: Rows, width: int | None) -> "Table | Text":
    """Return a table to be rendered; nothing in it is left out, however narrow the window.

    Where two columns are too wide, their cells are folded. Where more of them are, or the window is
    very narrow, the first cell of a row, its name, gets a separate line, with the others below.

    Args:
        columns: heading and justification ("left" or "right") of each column; no line of headings
            where all are empty.
        rows: the cells, a sequence per row.
        width: characters in a line; None for as many as are needed.
    """
    cells = [[escape_line(cell) for cell in row] for row in rows]
    if width is None or _needed(columns, cells) <= width:
        return _plain(columns, cells)
    if len(columns) > 2 or width < _NARROWEST:
        return _stacked(columns, cells, width)
    return _plain(columns, cells)


def _plain(columns: Columns, cells: Rows) -> "Table":
    from rich.table import Table
    from rich.text import Text

    has_headings = any(heading for heading, _ in columns)
    made = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, _GAP, 0, 0),
        show_header=has_headings,
    )
    for heading, justification in columns:
        right = justification == "right"
        made.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in cells:
        made.add_row(*map(Text, row))
    return made


def _stacked(columns: Columns, cells: Rows, width: int) -> "Text":
    """Return two or more lines per row: its name, and below it the other cells."""
    from rich.text import Text

    widths = [max((len(row[i]) for row in cells), default=0) for i in range(len(columns))]
    fits = sum(widths[1:]) + _GAP * len(widths[1:]) <= width
    lines = []
    for name, *rest in cells:
        if fits:
            justified = [
                cell.rjust(wide) if justification == "right" else cell.ljust(wide)
                for cell, wide, (_, justification) in zip(
                    rest, widths[1:], columns[1:], strict=True
                )
            ]
            below = [(" " * _GAP).join(justified).rstrip()]
        else:
            below = [cell for cell in rest if cell]
        lines += [name, *(" " * _GAP + line for line in below)]
    return Text("\n".join(lines))


def _needed(columns: Columns, cells: Rows) -> int:
    """Return the characters of the widest line."""
    rows = [[heading for heading, _ in columns], *cells]
    widest = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return sum(widest) + _GAP * (len(columns) - 1)
