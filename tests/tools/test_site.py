"""The site works from files, without a network: in Chromium, as a reader uses it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

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


def test_a_section_of_chapter_14_leads_to_its_place_in_the_explorer(site, page):
    page.goto(f"file://{site}/docs/14b-attention.html")
    page.click("#stage-13-scores-mask-softmax a[href*='view=attention']")
    page.wait_for_selector("#view[data-view=attention]")
    assert page.locator("h3:has-text('Layer 0, head 2, which reads')").count() == 1
    assert page.locator("#token-26").get_attribute("aria-selected") == "true"


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


class Links(HTMLParser):
    """The targets of a page's links and pictures, and the ids that links may have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {values[name] or "" for name in ("id", "name") if values.get(name)}
        target = values.get({"a": "href", "img": "src"}.get(tag, "")) or ""
        if target and not re.match(r"[a-z]+:", target):
            self.targets.append(unquote(target))


def broken_links(site: Path) -> list[str]:
    """Return the links of all pages that lead nowhere, with the page of each."""
    pages = {
        path: Links(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.parent.name != "explorer"  # the explorer's own page uses its script
    }
    broken = []
    for path, links in pages.items():
        for target in links.targets:
            file, _, anchor = target.partition("#")
            place = (path.parent / file).resolve() if file else path
            is_there = place.exists() and (
                not anchor or place not in pages or anchor in pages[place].ids
            )
            if not is_there:
                broken.append(f"{path.relative_to(site)}: {target}")
    return broken


def test_every_link_and_picture_leads_somewhere(site):
    assert broken_links(site) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#x">b</a><img src="no.svg">')
    (tmp_path / "b.html").write_text('<h1 id="y"><a href="a.html">a</a></h1>')
    assert broken_links(tmp_path) == ["a.html: b.html#x", "a.html: no.svg"]


PLACES = ("index", "README", "docs/10-rope", "docs/14b-attention", "docs/EXERCISES")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400, 2560])
def test_pages_fit_the_width_in_both_themes_and_say_nothing(site, page, width, theme):
    page.set_viewport_size({"width": width, "height": 1000})
    page.emulate_media(color_scheme=theme)
    for place in PLACES:
        page.goto(f"file://{site}/{place}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(paper) > 0.5) == (theme == "light"), place


def test_the_first_page_leads_to_the_ways_of_learning(site, page):
    page.goto(f"file://{site}/index.html")
    picture = page.locator("article img")
    assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") == 900
    ways = page.locator(".landing-ways a")
    assert ways.count() == 6
    page.click(".landing-ways a[href*='EXERCISES']")
    assert "Exercises that the engine marks" in page.title()


def test_a_chapter_leads_to_the_ones_before_and_after_it(site, page):
    page.goto(f"file://{site}/docs/10-rope.html")
    page.click(".related-pages .next-page")
    assert page.url.endswith("docs/11-kv-cache.html")
    page.click(".related-pages .prev-page")
    assert page.url.endswith("docs/10-rope.html")


def test_solutions_are_folded_until_they_are_opened(site, page):
    page.goto(f"file://{site}/docs/10-rope.html#exercises")
    solution = page.locator("details").first
    code = solution.locator("pre")
    api.expect(code).to_be_hidden()
    solution.locator("summary").click()
    api.expect(code).to_be_visible()
    assert "def rotations" in code.inner_text()


def test_code_is_copied_with_a_button(site, browser, page):
    browser.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"file://{site}/docs/EXERCISES.html")
    block = page.locator("article .highlight").first
    block.hover()
    block.locator(".copy").click()
    api.expect(block.locator(".copy")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("python -m src.main --exercise list")
    assert "Copy" not in copied


def test_a_diagram_is_enlarged_and_moved_in_a_dialog(site, page):
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"file://{site}/docs/14b-attention.html")
    pictures = page.locator("article img")
    assert page.locator("article img.zoomable").count() == pictures.count() > 5
    pictures.first.click()
    dialog = page.locator("dialog.zoom")
    api.expect(dialog).to_be_visible()
    large = dialog.locator("img")
    before = large.bounding_box()
    page.keyboard.press("+")
    assert large.bounding_box()["width"] == pytest.approx(
        1.25 * before["width"], rel=0.01
    )
    page.mouse.move(700, 450)
    page.mouse.wheel(0, -100)
    page.wait_for_function(
        "document.querySelector('.zoom img').style.transform.includes('1.56')"
    )
    page.keyboard.press("Escape")
    api.expect(dialog).to_be_hidden()


def test_a_notebook_is_rendered(site, page):
    page.goto(f"file://{site}/docs/BY-HAND.html")
    page.click("a[href*='by_hand.ipynb']")
    assert page.locator(".notebook .cell-code").count() >= 20
    assert page.locator(".notebook h2").count() >= 3
    assert "cell_type" not in page.locator("article").inner_text()
