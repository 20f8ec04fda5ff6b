"""The page of the example alone answers the ten questions of docs/EXPLORER.md, as told
there.
"""

import re

import pytest

from tests.explorer.test_page import browser, opened, page  # noqa: F401
from tests.support.browser import api
from tools.pages import ROOT
from tools.runs import PAGE

pytestmark = pytest.mark.slow
SECTION = (ROOT / "docs" / "EXPLORER.md").read_text("utf-8").partition("## Exercises")[2]
# Question, clicks and answer, by the number.
ROWS = re.findall(r"^\| \d+ \| (.+?) \| (.+?) \| (.+) \|$", SECTION, re.MULTILINE)
# Where the page has the answer of each, in order: CSS selectors.
PLACES = (
    ["#chosen-probability"], ["#heads-largest"],
    [".clock:first-child small"],
    ["#lens-position tr:has(td:nth-child(2) bdi:text-is(\"'Boston'\")) td:first-child"],
    ["#largest-part"], ["#largest-head"],
    ["#sampling-drawn bdi", "#sampling-same", "#candidates tr.sum td:last-child"],
    [f"#ops tbody tr:first-child td:nth-child({n})" for n in (2, 6)], ["#view .readout"],
    [f"#passes tbody tr:last-child td:nth-child({n})" for n in (5, 10)],
)  # fmt: skip


def click(page, text: str) -> None:  # noqa: F811
    """Does what a click of the table says."""
    number = re.search(r"[\d.]+", text)
    if text.startswith("show position"):
        page.click("#drawn-from")
    elif text.startswith("attended token"):
        page.select_option("#attention-key", number[0])
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
    if count == "none":
        api.expect(page.locator(places[0])).to_be_in_viewport()
    told = ", ".join(page.locator(place).first.inner_text() for place in places)
    words, numbers = answered(told)
    assert words == answered(answer)[0]
    # Attention weights are stored in steps of 1/255, a logit's parts are of rounded
    # activations.
    assert numbers == pytest.approx(answered(answer)[1], rel=0.01, abs=0.003)
