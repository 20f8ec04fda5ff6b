"""The page of the example alone answers the questions of docs/EXPLORER.md, as told
there, and the links of chapter 14 open it at their places.
"""

import re

import pytest

from tests.explorer.test_page import browser, opened, page  # noqa: F401
from tests.support.browser import api
from tools.pages import ROOT, links
from tools.runs import PAGE

pytestmark = pytest.mark.slow
SECTION = (ROOT / "docs" / "EXPLORER.md").read_text("utf-8").partition("## Exercises")[2]
# Question, clicks and answer, by the number.
ROWS = re.findall(r"^\| \d+ \| (.+?) \| (.+?) \| (.+) \|$", SECTION, re.MULTILINE)
# Where the page has the answer of each, in order: CSS selectors.
PLACES = (
    ["#chosen-probability"], ["#heads-largest"],
    [".clock:first-child small"],
    [".lens tr:has(td.here bdi:text-is(\"'Boston'\")) th"],
    ["#largest-part"], ["#largest-head"],
    ["#sampling-drawn bdi", "#sampling-same", "#candidates tr.sum td:last-child"],
    [f"#ops tbody tr:first-child td:nth-child({n})" for n in (2, 6)], ["#view .readout"],
    [f"#passes tbody tr:last-child td:nth-child({n})" for n in (5, 10)],
    ["#head-kinds tbody tr:first-child button"],
)  # fmt: skip


def click(page, text: str) -> None:  # noqa: F811
    """Does what a click of the table says."""
    number = re.search(r"[\d.]+", text)
    if text.startswith("show position"):
        page.click("#drawn-from")
    elif text.startswith("attended token"):
        page.select_option("#attention-key", number[0])
    elif text.startswith("token"):
        page.click(f"#token-{number[0]}")
    elif text.startswith("temperature"):
        page.locator("#sampling-temperature").fill(number[0])
    else:
        page.click(f"[role=tab]:has-text('{text}')")
    page.wait_for_timeout(150)


def answered(text: str) -> tuple[list[str], list[float]]:
    """The words of an answer, and its numbers."""
    text = text.replace(",", "").replace("\u00a0", " ")
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    words = re.findall(r"[^\s\d:.]+", re.sub(number, " ", text))
    return words, [float(x) for x in re.findall(number, text)]


@pytest.mark.parametrize(("row", "places"), [*zip(ROWS, PLACES, strict=True)])
def test_a_question_is_answered_by_the_page_alone(page, row, places):  # noqa: F811
    _question, clicks, answer = row
    opened(page, PAGE)
    count, _, names = clicks.partition(": ")
    texts = [] if count == "none" else names.split(" → ")
    assert count == "none" or int(count) == len(texts)
    for text in texts:
        click(page, text)
    if count == "none" and names != "scroll down":
        api.expect(page.locator(places[0])).to_be_in_viewport()
    told = ", ".join(page.locator(place).first.inner_text() for place in places)
    words, numbers = answered(told)
    assert words == answered(answer)[0]
    # Attention weights are stored in steps of 1/255, a logit's parts are of rounded
    # activations.
    assert numbers == pytest.approx(answered(answer)[1], rel=0.01, abs=0.003)


def links_of_chapter_14() -> list[tuple[int, str, str]]:
    """The stage of the section, the text and the fragment of each link to the page."""
    found = []
    for name in ("14-forward-pass", "14b-attention", "14c-next-token"):
        text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        for section in re.split(r"^## ", text, flags=re.MULTILINE):
            stage = re.match(r"Stage (\d+): ", section)
            for link in links(section) if stage else ():
                path, _, fragment = link.target.partition("#")
                if path == "explorer/example.html" and fragment:
                    found.append((int(stage[1]), link.text, fragment))
    return found


def test_each_section_of_chapter_14_links_to_its_place(page):  # noqa: F811
    found = links_of_chapter_14()
    assert {stage for stage, text, _ in found if text == "the stage"} == {*range(1, 22)}
    opened(page, PAGE)
    for stage, text, fragment in found:
        asked = dict(part.split("=") for part in fragment.split("&"))
        assert int(asked["stage"]) == stage, text
        page.evaluate("explorer.show({ view: 'tour', stage: 1, position: 0, head: 0 })")
        page.evaluate("(fragment) => { location.hash = fragment; }", fragment)
        page.wait_for_selector(f"#view[data-view={asked['view']}]")
        state = page.evaluate("explorer.state")
        assert state["position"] == int(asked["token"])
        for name in ("stage", "layer", "head"):
            assert state[name] == int(asked.get(name, 0)), (stage, text)
        if asked["view"] == "map":
            heading = page.locator("#stage-heading").inner_text()
            assert heading.startswith(f"Stage {stage}:")
        if asked["view"] == "values":
            title = page.locator("#values-tensor option:checked").inner_text()
            assert f"stage {stage}: " in title, (stage, title)
            assert title.startswith("pass 0, ")
