"""A table of numbers as a heat map: characters for a terminal, or an SVG file."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

# Shades of shares from 0 to 1, and the share up to which each of them is used.
_SHADES = ((0.05, "·"), (0.25, "░"), (0.5, "▒"), (0.75, "▓"))
_FULL = "█"
_NEGATIVE = "-"
_CELL = 16  # the size of a cell in pixels
_MARGIN = 60
_FONT = 10

Table = Sequence[Sequence[float]]


def shade(value: float, full: float) -> str:
    """Return the character of a value; `full` is the value of the darkest one."""
    share = value / full if full else 0.0
    if share <= -_SHADES[0][0]:
        return _NEGATIVE
    return next((character for most, character in _SHADES if share < most), _FULL)


def heat_map_lines(values: Table, full: float, label: str) -> list[str]:
    """Return one line for each row: its label and number, and a character per column."""
    width = len(f"{label} {len(values) - 1}")
    return [
        f"{f'{label} {number}':<{width}}  {''.join(shade(x, full) for x in row)}"
        for number, row in enumerate(values)
    ]


def heat_map_svg(values: Table, full: float, title: str, columns: Sequence[str]) -> str:
    """Return an SVG file of a table, red for positive and blue for negative values.

    Args:
        values: The rows, the first one at the top.
        full: The magnitude with full colour.
        title: The text above the map.
        columns: The label of each column.
    """
    rows = len(values)
    width = _MARGIN + _CELL * len(columns) + _CELL
    height = 2 * _CELL + rows * _CELL + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="{_FONT}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="4" y="{_CELL - 4}">{escape(title)}</text>',
    ]
    for number, row in enumerate(values):
        y = (number + 1) * _CELL + _CELL // 2
        parts.append(f'<text x="4" y="{y + 12}">layer {number}</text>')
        for column, value in enumerate(row):
            x = _MARGIN + column * _CELL
            share = min(abs(value) / full, 1.0) if full else 0.0
            colour = "200,30,30" if value >= 0 else "30,60,200"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" '
                f'fill="rgb({colour})" fill-opacity="{share:.3f}" stroke="#ddd">'
                f"<title>{escape(columns[column])}: {value:.4g}</title></rect>"
            )
    y = (rows + 2) * _CELL
    for column, label in enumerate(columns):
        x = _MARGIN + column * _CELL + _CELL // 2
        place = f'x="{x}" y="{y}" transform="rotate(60 {x} {y})"'
        parts.append(f"<text {place}>{escape(label)}</text>")
    return "\n".join([*parts, "</svg>", ""])
