"""Line charts as SVG, in colours for light and for dark: as little as the pages need."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH = 900
_PANEL_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 34, 48, 52
_CHARACTER = 7.0  # about how wide one is in a font of 12
_SANS = "-apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
# Class: (light, dark). The series take their colours in this order.
_SERIES = (
    ("#0969da", "#58a6ff"),
    ("#bc4c00", "#f0883e"),
    ("#1a7f37", "#3fb950"),
    ("#8250df", "#a371f7"),
    ("#59636e", "#9da5ae"),
)
_PAPER, _INK, _SOFT = ("#ffffff", "#0d1117"), ("#1f2328", "#e6edf3"), ("#d1d9e0", "#3d444d")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
        label: what it measures.
        low, high: its ends.
        ticks: where it is marked, each with its text.
        log: whether distances are ratios.
    """

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        """Returns where a value lies between the ends, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        label: for the key; empty for none.
        points: (x, y), in order.
        colour: number of its colour.
        marks: whether each point is marked.
        dashed: whether the line is.
    """

    label: str
    points: Points
    colour: int = 0
    marks: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over two axes, with a title and, beside the label of y, a key."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]


def svg(title: str, rows: Sequence[Sequence[Chart]], height: int = _PANEL_HEIGHT) -> str:
    """Returns a page of charts.

    Args:
        title: what a screen reader says.
        rows: the charts, row by row; those of a row share its width.
        height: of a row.
    """
    total = height * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" '
        f'viewBox="0 0 {WIDTH} {total}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_style()}\n</style>",
        f'<rect class="paper" x="0" y="0" width="{WIDTH}" height="{total}"/>',
    ]
    for number, row in enumerate(rows):
        width = WIDTH / len(row)
        for place, chart in enumerate(row):
            parts += _chart(chart, place * width, number * height, width, height)
    return "\n".join([*parts, "</svg>\n"])


def _chart(chart: Chart, x: float, y: float, width: float, height: float) -> list[str]:
    left, right = x + _LEFT, x + width - _RIGHT
    top, bottom = y + _TOP, y + height - _BOTTOM

    def at(point: tuple[float, float]) -> tuple[float, float]:
        across, up = chart.x.share(point[0]), chart.y.share(point[1])
        return left + across * (right - left), bottom - up * (bottom - top)

    parts = [_text((left, y + 20), chart.title, 15, bold=True)]
    for value, text in chart.x.ticks:
        place, _ = at((value, chart.y.low))
        parts.append(_line("grid", [(place, top), (place, bottom)]))
        parts.append(_text((place, bottom + 18), text, 12, anchor="middle"))
    for value, text in chart.y.ticks:
        _, place = at((chart.x.low, value))
        parts.append(_line("grid", [(left, place), (right, place)]))
        parts.append(_text((left - 8, place + 4), text, 12, anchor="end"))
    parts.append(_text(((left + right) / 2, bottom + 38), chart.x.label, 13, anchor="middle"))
    parts.append(_text((left, y + 38), chart.y.label, 12))
    for series in chart.series:
        parts += _series(series, at)
    return parts + _key(chart.series, right, y + 38)


def _series(series: Series, at: Callable[[tuple[float, float]], tuple[float, float]]) -> list[str]:
    points = [at(point) for point in series.points]
    kind = f"line s{series.colour}" + (" dashed" if series.dashed else "")
    parts = [_line(kind, points)]
    if series.marks:
        parts += [
            f'<circle class="f{series.colour}" cx="{_n(a)}" cy="{_n(b)}" r="3"/>' for a, b in points
        ]
    return parts


def _key(series: Sequence[Series], right: float, y: float) -> list[str]:
    """Returns the names of the lines beside each other; the last one ends at the right."""
    parts, x = [], right
    for one in reversed([one for one in series if one.label]):
        x -= _CHARACTER * len(one.label)
        kind = f"line s{one.colour}" + (" dashed" if one.dashed else "")
        parts.append(_text((x, y), one.label, 12))
        parts.append(_line(kind, [(x - 28, y - 4), (x - 6, y - 4)]))
        x -= 44
    return parts


def _line(kind: str, points: Points) -> str:
    path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}"/>'


def _text(
    at: tuple[float, float], text: str, size: int, *, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return (
        f'<text x="{_n(at[0])}" y="{_n(at[1])}" font-size="{size}"{weight}{where}>'
        f"{escape(text)}</text>"
    )


def _style() -> str:
    light, dark = _rules(0), "\n".join(f"  {rule}" for rule in _rules(1))
    return "\n".join(
        [
            f"text {{ font-family: {_SANS}; }}",
            "polyline { fill: none; stroke-width: 1; }",
            ".line { stroke-width: 2; }",
            ".dashed { stroke-dasharray: 6 4; }",
            *light,
            f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}",
        ]
    )


def _rules(scheme: int) -> list[str]:
    return [
        f".paper {{ fill: {_PAPER[scheme]}; }}",
        f"text {{ fill: {_INK[scheme]}; }}",
        f".grid {{ stroke: {_SOFT[scheme]}; }}",
        *(f".s{n} {{ stroke: {colours[scheme]}; }}" for n, colours in enumerate(_SERIES)),
        *(f".f{n} {{ fill: {colours[scheme]}; }}" for n, colours in enumerate(_SERIES)),
    ]


def _n(number: float) -> str:
    """Returns a coordinate with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")


def write_plots(folder: Path, plots: Mapping[str, Callable[[], str]]) -> None:
    """Write plots, by the names of their files, into a folder."""
    folder.mkdir(exist_ok=True)
    for name, draw in plots.items():
        (folder / name).write_text(draw(), encoding="utf-8")
