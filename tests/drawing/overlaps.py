"""What is wrong with a diagram as a picture: text that leaves its box, boxes that
overlap.

It reads the SVG alone, and estimates the width of text by itself: 0.61 of its size for
each character of the fixed font, as in the widest that readers have, and 0.56 on average
of the other.
"""

from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

NAMESPACE = "{http://www.w3.org/2000/svg}"
_SMALLEST_TEXT = 13
_TOUCH = 1.0  # edges may touch


@dataclass(frozen=True)
class Area:
    """A rectangle on the page, and what it is."""

    left: float
    top: float
    right: float
    bottom: float
    said: str

    def holds(self, other: "Area") -> bool:
        return (
            max(self.left - other.left, self.top - other.top) <= _TOUCH
            and max(other.right - self.right, other.bottom - self.bottom) <= _TOUCH
        )

    def meets(self, other: "Area") -> bool:
        return (
            max(self.left, other.left) < min(self.right, other.right) - _TOUCH
            and max(self.top, other.top) < min(self.bottom, other.bottom) - _TOUCH
        )


def faults(svg: str) -> list[str]:
    """Returns what is wrong, a line each."""
    page = ElementTree.fromstring(svg)
    paper, *boxes = (_box(rect) for rect in page.iter(f"{NAMESPACE}rect"))
    texts = [_text(text) for text in page.iter(f"{NAMESPACE}text")]
    found = [
        f"{a.said} is not on the page" for a in (*boxes, *texts) if not paper.holds(a)
    ]
    for number, a in enumerate(boxes):
        for b in boxes[number + 1 :]:
            if a.meets(b) and not (a.holds(b) or b.holds(a)) and not _sheets(a, b):
                found.append(f"{a.said} overlaps {b.said}")
    for number, text in enumerate(texts):
        met = [box for box in boxes if box.meets(text) and not box.holds(text)]
        found += [f"{text.said} crosses the edge of {box.said}" for box in met]
        found += [
            f"{text.said} overlaps {b.said}" for b in texts[number + 1 :] if text.meets(b)
        ]
    for line in page.iter(f"{NAMESPACE}polyline"):
        found += [
            f"{part.said} crosses {text.said}"
            for part in _parts(line)
            for text in texts
            if part.meets(text)
        ]
    sizes = {int(text.attrib["font-size"]) for text in page.iter(f"{NAMESPACE}text")}
    found += [f"text of size {size}" for size in sorted(sizes) if size < _SMALLEST_TEXT]
    return found


def _box(rect: ElementTree.Element) -> Area:
    x, y, width, height = (
        float(rect.attrib[name]) for name in ("x", "y", "width", "height")
    )
    return Area(x, y, x + width, y + height, f"{rect.attrib['class']} at {x:g}, {y:g}")


def _text(text: ElementTree.Element) -> Area:
    x = float(text.attrib["x"])
    y = float(text.attrib["y"])
    size = float(text.attrib["font-size"])
    said = text.text or ""
    cells = sum(2 if ord(character) >= 0x1100 else 1 for character in said)
    kinds = text.attrib["class"].split()
    width = (
        cells * size * (0.61 if "mono" in kinds else 0.66 if "bold" in kinds else 0.56)
    )
    anchor = text.attrib.get("text-anchor", "start")
    left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
    return Area(left, y - 0.75 * size, left + width, y + 0.22 * size, repr(said))


def _parts(line: ElementTree.Element) -> list[Area]:
    points = [
        tuple(map(float, point.split(","))) for point in line.attrib["points"].split()
    ]
    return [
        Area(
            min(a[0], b[0]) - 1,
            min(a[1], b[1]) - 1,
            max(a[0], b[0]) + 1,
            max(a[1], b[1]) + 1,
            f"the line from {a} to {b}",
        )
        for a, b in pairwise(points)
    ]


def _sheets(a: Area, b: Area) -> bool:
    """The sheets of a tensor of three dimensions lie one on the other."""
    return "sheet" in a.said and "sheet" in b.said
