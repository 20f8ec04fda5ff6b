import pytest

from src.drawing.canvas import Box, Canvas
from tests.drawing.overlaps import faults


def page(*, wide: float = 200, second: float = 300, line: float = 400, size: int = 14) -> str:
    canvas = Canvas()
    canvas.rect(Box(30, 30, wide, 40), "op")
    canvas.text((40, 55), "twenty characters ..", size=size)
    canvas.rect(Box(second, 30, 100, 40), "op")
    canvas.arrow([(line, 20), (line, 90)])
    return canvas.svg("a page")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"wide": 150}, "'twenty characters ..' crosses the edge of op at 30, 30"),
        ({"second": 220}, "op at 30, 30 overlaps op at 220, 30"),
        ({"second": 850}, "op at 850, 30 is not on the page"),
        ({"line": 100}, "the line from (100.0, 20.0) to (100.0, 90.0) crosses 'twenty charact"),
        ({"size": 11}, "text of size 11"),
    ],
)
def test_what_meets_is_a_fault(changed, fault):
    assert faults(page()) == []
    found = faults(page(**changed))
    assert any(line.startswith(fault) for line in found), found


def test_texts_that_lie_one_on_the_other_are_a_fault():
    canvas = Canvas()
    canvas.text((40, 55), "one")
    canvas.text((50, 60), "other")
    assert faults(canvas.svg("a page")) == ["'one' overlaps 'other'"]
