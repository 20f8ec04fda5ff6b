"""The plots of the chapters on sampling and quantization are those that the code draws now."""

from xml.etree import ElementTree

import numpy as np
import pytest

from tools.chapter_plots import FOLDER, PLOTS, nf4


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_current_and_well_formed(name: str) -> None:
    drawn = PLOTS[name]()
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn, "run python -m tools.chapter_plots"
    ElementTree.fromstring(drawn)


def test_no_other_plot_lies_there() -> None:
    names = {path.name for path in FOLDER.glob("*.svg") if not path.name.startswith("rope-")}
    assert names == set(PLOTS)


def test_the_levels_of_nf4_are_those_of_the_paper() -> None:
    paper = (
        -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
    )  # fmt: skip
    assert np.abs(nf4() - np.array(paper)).max() < 1e-6
