"""Line charts: places on axes, and pages that are well-formed."""

from xml.etree import ElementTree

import pytest

from tools.plots import Axis, Chart, Series, svg


def test_a_linear_axis_places_values_by_their_difference() -> None:
    axis = Axis("x", 10, 20, [])
    assert [axis.share(value) for value in (10, 15, 20)] == [0, 0.5, 1]


def test_a_logarithmic_axis_places_values_by_their_ratio() -> None:
    axis = Axis("x", 1, 10_000, [], log=True)
    assert [axis.share(value) for value in (1, 100, 10_000)] == pytest.approx([0, 0.5, 1])


def test_a_page_holds_every_line_and_every_name_with_its_characters_escaped() -> None:
    axis = Axis("a < b", 0, 1, [(0, "0"), (1, "1")])
    lines = [Series("one", [(0, 0), (1, 1)]), Series("two & three", [(0, 1), (1, 0)], 1)]
    page = ElementTree.fromstring(svg("A page", [[Chart("Title", axis, axis, lines)]]))
    texts = [element.text for element in page.iter() if element.tag.endswith("}text")]
    assert {"Title", "a < b", "one", "two & three"} <= set(texts)
    drawn = [e for e in page.iter() if e.get("class", "").startswith("line ")]
    assert len(drawn) == 2 * len(lines)  # in the chart, and in its key


def test_charts_of_a_row_share_its_width() -> None:
    axis = Axis("", 0, 1, [])
    corners = Series("", [(0, 0), (1, 0)])
    page = svg("", [[Chart("", axis, axis, [corners]), Chart("", axis, axis, [corners])]])
    lines = [e.get("points") for e in ElementTree.fromstring(page).iter() if e.get("points")]
    ends = [[float(point.split(",")[0]) for point in line.split()] for line in lines if line]
    assert ends[0][1] < 450 < ends[1][0]
