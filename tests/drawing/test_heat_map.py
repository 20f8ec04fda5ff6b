"""Heat maps in characters and in SVG."""

from xml.etree import ElementTree

from src.drawing.heat_map import heat_map_lines, heat_map_svg


def test_shades_follow_shares_of_the_largest_value() -> None:
    values = [[0.0, 0.04, 0.1, 0.3, 0.6, 0.8, 2.0, -0.2], [0.0] * 8]
    assert heat_map_lines(values, 1.0, "layer") == [
        "layer 0  ··░▒▓██-",
        "layer 1  ········",
    ]
    assert heat_map_lines([[1.0, 3.0]], 4.0, "layer") == ["layer 0  ▒█"]
    assert heat_map_lines([[0.0]], 0.0, "layer") == ["layer 0  ·"]


def test_a_plot_has_a_cell_for_each_value_and_escapes_its_texts() -> None:
    svg = heat_map_svg([[0.5, -1.0]], 1.0, "a < b", ["<s>", "'x'"])
    root = ElementTree.fromstring(svg)
    cells = root.findall("{*}rect")[1:]
    assert [cell.get("fill-opacity") for cell in cells] == ["0.500", "1.000"]
    assert [cell.get("fill") for cell in cells] == ["rgb(200,30,30)", "rgb(30,60,200)"]
    texts = [each.text for each in root.findall("{*}text")]
    assert texts == ["a < b", "layer 0", "<s>", "'x'"]
