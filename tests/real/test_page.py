"""The committed page of a run of SmolLM2 has the numbers of a new run."""

import pytest

pytest.importorskip("matplotlib", reason="the docs extra is not installed")
from src.model import load_model
from tools.smollm2_page import is_current, new_page

pytestmark = pytest.mark.real


@pytest.mark.usefixtures("smollm2")
def test_the_page_of_smollm2_is_current() -> None:
    model = load_model("smollm2")  # by its name, which the page shows
    assert is_current(new_page(model)), "python -m tools.smollm2_page"
