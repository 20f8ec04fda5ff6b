"""The committed page of SmolLM2 shows induction heads and heads that move a name."""

import re

import pytest

from tests.explorer.test_page import (  # noqa: F401
    IN_WINDOW,
    VIEWS,
    browser,
    go,
    opened,
    page,
)
from tools.smollm2_page import PAGE

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (1400, "dark"), (2560, "light")]
)
def test_every_view_of_the_second_example_fits(page, width, scheme):  # noqa: F811
    assert PAGE.stat().st_size < 6_000_000
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, PAGE)
    assert page.locator("#decided").inner_text() == "' Mary'"
    assert page.evaluate(IN_WINDOW, ".lens td.here")
    for view in VIEWS:
        go(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view


def test_the_heads_that_move_the_name_and_induction_heads_are_shown(page):  # noqa: F811
    opened(page, PAGE)
    rows = page.locator("#promoting-heads tbody tr").all_inner_texts()
    movers = [row for row in rows if "' Mary'" in row]
    assert len(movers) >= 3
    go(page, "attention")
    induction = page.locator("#head-kinds tbody tr:nth-child(3)").inner_text()
    heads = re.findall(r"\b(\d+)\.(\d+)\b", induction)
    assert {("17", "5"), ("18", "6")} <= {*heads}
    layer, head = heads[0]
    page.click(f"#kind-{layer}-{head}")
    page.wait_for_selector(f"h3:has-text('Layer {layer}, head {head}')")
    scores = page.locator("#head-scores").inner_text()
    share = re.search(r"it assigns (\d+)", scores.replace("\u00a0", " "))
    assert int(share[1]) >= 40
