"""An SVG page with rectangles, text and arrows, in light and dark colours.

Because fonts differ between readers, text widths are estimated generously.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ..untrusted import escape_line

WIDTH = 900
MARGIN = 30
INNER = WIDTH - 2 * MARGIN
SMALL = 13
BODY = 14
LARGE = 16
TITLE = 21
_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_SANS = "-apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
# Character width relative to the font size: the maximum of the monospace fonts above, and
# the average of the proportional fonts.
MONO_EM = 0.61
SANS_EM = 0.58
_ARROW = 7.0

Point = tuple[float, float]

# Class -> (fill, stroke) in light mode, (fill, stroke) in dark mode.
_SHAPES = {
    "paper": (("#ffffff", "none"), ("#0d1117", "none")),
    "tensor": (("#ddf4ff", "#54aeff"), ("#10304f", "#388bfd")),
    "weight": (("#fff3c4", "#d4a72c"), ("#3b2f0b", "#bb8009")),
    "op": (("#f6f8fa", "#8c959f"), ("#1b222b", "#6e7681")),
    "stage": (("#eef0ff", "#8c8cf0"), ("#24224a", "#7d79e0")),
    "layers": (("#f4f5ff", "#c3c3f5"), ("#17172b", "#4b4a86")),
    "group": (("#fbfcfd", "#d1d9e0"), ("#11161d", "#3d444d")),
    "sheet": (("#b6e3ff", "#0969da"), ("#1f4b78", "#58a6ff")),
    "weightsheet": (("#fae17d", "#9a6700"), ("#6b5310", "#d29922")),
    "dim": (("#eaeef2", "#d1d9e0"), ("#21262d", "#3d444d")),
    "heat": (("#0550ae", "none"), ("#79c0ff", "none")),
    "badge": (("#4f46c8", "none"), ("#6a63e8", "none")),
    "head": (("#59636e", "none"), ("#9198a1", "none")),
    "newhead": (("#1a7f37", "none"), ("#3fb950", "none")),
}
_LINES = {"arrow": ("#59636e", "#9198a1"), "residual": ("#1a7f37", "#3fb950")}
_INKS = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9da5ae"),
    "white": ("#ffffff", "#ffffff"),
    "green": ("#1a7f37", "#3fb950"),
}


@dataclass(frozen=True)
class Box:
    """A rectangle, given by its top left corner and its size."""

    x: float
    y: float
    width: float
    height: float = 0.0  # 0 if the content determines the height

    @property
    def right(self) -> float:
        """The x coordinate of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y coordinate of the lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> Point:
        """The centre of the rectangle."""
        return self.x + self.width / 2, self.y + self.height / 2


class Canvas:
    """The drawn elements in order, whose extent determines the height of the page."""

    def __init__(self) -> None:
        self._elements: list[str] = []
        self.bottom = 0.0

    def slot(self) -> int:
        """Return a slot in which an element can later be drawn behind newer elements."""
        return len(self._elements)

    def rect(
        self,
        box: Box,
        kind: str,
        radius: float = 6,
        slot: int | None = None,
        opacity: float = 1.0,
    ) -> Box:
        """Draw a rectangle on top or in a slot, and return it.

        Slots must be filled in reverse order. `kind` is a class in the palette.
        """
        faint = "" if opacity == 1.0 else f' fill-opacity="{opacity:.2f}"'
        element = (
            f'<rect class="{kind}" x="{_n(box.x)}" y="{_n(box.y)}" '
            f'width="{_n(box.width)}" height="{_n(box.height)}" '
            f'rx="{_n(radius)}"{faint}/>'
        )
        self._elements.insert(len(self._elements) if slot is None else slot, element)
        self.bottom = max(self.bottom, box.bottom)
        return box

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: int = BODY,
        ink: str = "ink",
        anchor: str = "start",
        mono: bool = True,
        bold: bool = False,
        struck: bool = False,
        room: float = math.inf,
    ) -> None:
        """Draw a line of text at a point on its baseline.

        Text that is wider than `room` is truncated.
        """
        text = shortened(escape_line(text), room, size)
        kinds = f"{ink} {'mono' if mono else 'sans'}{' bold' * bold}"
        attributes = "" if anchor == "start" else f' text-anchor="{anchor}"'
        attributes += ' text-decoration="line-through"' * struck
        self._elements.append(
            f'<text class="{kinds}" x="{_n(at[0])}" y="{_n(at[1])}" '
            f'font-size="{size}"{attributes}>{escape(text)}</text>'
        )
        self.bottom = max(self.bottom, at[1] + size * 0.3)

    def arrow(
        self, points: Sequence[Point], kind: str = "arrow", *, head: bool = True
    ) -> None:
        """Draw a line through points, with an arrowhead at the last point."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._elements.append(f'<polyline class="{kind}" points="{path}"/>')
        if head:
            (x0, y0), (x, y) = points[-2:]
            dx, dy = (_ARROW * ((d > 0) - (d < 0)) for d in (x - x0, y - y0))
            left, right = (
                (x - dx - side * dy, y - dy + side * dx) for side in (0.6, -0.6)
            )
            corners = " ".join(f"{_n(a)},{_n(b)}" for a, b in ((x, y), left, right))
            style = "newhead" if kind == "residual" else "head"
            self._elements.append(f'<polygon class="{style}" points="{corners}"/>')
        self.bottom = max(self.bottom, *(y for _, y in points))

    def svg(self, title: str) -> str:
        """Return the page as SVG, with a title for screen readers."""
        size = f'width="{WIDTH}" height="{_n(self.bottom + MARGIN)}"'
        view = f"0 0 {WIDTH} {_n(self.bottom + MARGIN)}"
        drawn = "\n".join(self._elements)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{view}" '
            f'role="img">\n<title>{escape(escape_line(title))}</title>\n'
            f"<style>\n{_style()}\n</style>\n"
            f'<rect class="paper" x="0" y="0" {size}/>\n{drawn}\n</svg>\n'
        )


def text_width(text: str, size: int, *, mono: bool = True) -> float:
    """Return the approximate width of a line, counting wide characters twice."""
    cells = sum(2 if ord(character) >= 0x1100 else 1 for character in text)
    return cells * size * (MONO_EM if mono else SANS_EM)


def wrapped(text: str, width: float, size: int, *, mono: bool = False) -> list[str]:
    """Wrap text between words into lines of at most the given width."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size, mono=mono) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def shortened(text: str, width: float, size: int) -> str:
    """Return a line of monospace text, truncated to a width with `...`."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}...", size) > width:
        text = text[:-1]
    return f"{text}..."


def _style() -> str:
    """Return the style sheet, with rules for light mode and for dark mode."""
    fixed = f"""rect, polyline, polygon {{ stroke-width: 1.4; }}
polyline {{ fill: none; }}
.mono {{ font-family: {_MONO}; }}
.sans {{ font-family: {_SANS}; }}
.bold {{ font-weight: bold; }}"""
    dark = "\n".join(f"  {line}" for line in _rules(1))
    return "\n".join(
        [fixed, *_rules(0), f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}"]
    )


def _rules(scheme: int) -> list[str]:
    shapes = ((name, colours[scheme]) for name, colours in _SHAPES.items())
    return [
        *(
            f".{name} {{ fill: {fill}; stroke: {stroke}; }}"
            for name, (fill, stroke) in shapes
        ),
        *(
            f".{name} {{ stroke: {colours[scheme]}; }}"
            for name, colours in _LINES.items()
        ),
        *(f".{name} {{ fill: {colours[scheme]}; }}" for name, colours in _INKS.items()),
    ]


def _n(number: float) -> str:
    """Format a coordinate with at most one decimal place."""
    return f"{number:.1f}".removesuffix(".0")
