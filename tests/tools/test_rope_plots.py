"""The plots of the chapter on rotary embedding are those that the code draws now."""

from xml.etree import ElementTree

import pytest

from tools.rope_plots import FOLDER, PLOTS


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_current_and_well_formed(name: str) -> None:
    drawn = PLOTS[name]()
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn, "run python -m tools.rope_plots"
    ElementTree.fromstring(drawn)


def test_no_other_plot_lies_there() -> None:
    assert {path.name for path in FOLDER.glob("rope-*.svg")} == set(PLOTS)
