"""The site works from files, without a network: in Chromium, as a reader uses it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import api, chromium, quiet_page
from tools.pages import ROOT, blocks

pytest.importorskip("sphinx", reason="the docs extra is not installed")
pytest.importorskip("latex2mathml", reason="the docs extra is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-c",
        "tools/site",
        ".",
        str(folder),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    with chromium(tmp_path_factory.mktemp("profile"), color_scheme="dark") as started:
        yield started


@pytest.fixture
def page(browser) -> Iterator:
    with quiet_page(browser) as (page, _told):
        yield page


def test_a_search_finds_rope(site, page):
    page.goto(f"file://{site}/index.html")
    page.wait_for_url("**/README.html")
    page.fill(".sidebar-search", "RoPE")
    page.press(".sidebar-search", "Enter")
    page.wait_for_selector("#search-results li")
    found = page.locator("#search-results li a").all_inner_texts()
    assert "10. Rotary position embedding" in found


def test_a_link_to_code_opens_at_its_line_in_the_menu_s_frame(site, page):
    page.goto(f"file://{site}/docs/10-rope.html")
    page.click("a[href*='rows.c.html#L-']")
    line = page.url.rpartition("#L-")[2]
    marked = page.locator("a:target + a .linenos")
    assert marked.inner_text().strip() == line
    api.expect(marked).to_be_in_viewport()  # the page scrolls smoothly
    assert (
        "rotary("
        in (ROOT / "csrc" / "rows" / "rows.c").read_text().splitlines()[int(line) - 1]
    )


def test_the_page_of_the_explorer_and_its_picture_are_in_the_site(site, page):
    page.goto(f"file://{site}/README.html")
    picture = page.locator("img[src$='residual.png']")
    assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") == 1280
    page.click("a[href*='docs/explorer/example.html']")
    page.wait_for_selector("html[data-ready]")
    assert page.title() == "Inside a run"


def test_the_menu_folds_on_a_phone_and_has_the_groups(site, page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"file://{site}/docs/09-architecture.html")
    menu = page.locator(".sidebar-drawer")
    assert menu.bounding_box()["x"] + menu.bounding_box()["width"] <= 0
    page.click(".mobile-header .nav-overlay-icon")
    page.wait_for_function("document.querySelector('.sidebar-drawer').offsetLeft >= 0")
    captions = menu.locator(".caption-text").all_text_contents()
    assert captions == [
        "Chapters",
        "By hand",
        "User guides",
        "Reference",
        "For maintainers",
    ]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_formulas_are_mathematics_that_fits_a_phone(site, page):
    page.set_viewport_size({"width": 390, "height": 844})
    for name in ("09-architecture", "10-rope"):
        written = blocks((ROOT / "docs" / f"{name}.md").read_text("utf-8"))
        page.goto(f"file://{site}/docs/{name}.html")
        formulas = page.locator(".math math")
        assert formulas.count() == sum(block.language == "math" for block in written) > 2
        assert not any(
            "\\" in text or "&" in text for text in formulas.all_text_contents()
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    line = float(
        page.locator("p").first.evaluate(
            "node => parseFloat(getComputedStyle(node).lineHeight)"
        )
    )
    assert page.locator(".math mfrac").first.bounding_box()["height"] > line


def test_code_links_are_readable_in_the_dark(site, page):
    page.goto(f"file://{site}/docs/09-architecture.html")
    colours = page.locator("a > code").first.evaluate(
        "node => [getComputedStyle(node).color, "
        "getComputedStyle(document.body).backgroundColor]"
    )
    ink, paper = (luminance(colour) for colour in colours)
    assert (ink + 0.05) / (paper + 0.05) >= 4.5  # WCAG 2, level AA


def luminance(colour: str) -> float:
    """Return the relative luminance of `rgb(...)`, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(
        weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )
