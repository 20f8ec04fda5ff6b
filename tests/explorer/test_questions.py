"""Ten questions about a run are answered by the page alone, as the engine's own numbers do."""

import re
from pathlib import Path

import pytest

from tests.explorer.test_page import browser, opened, page  # noqa: F401
from tools.explorer_page import Question, current_page, questions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("example") / "example.html"
    path.write_text(current_page(), "utf-8")
    return path


def answered(text: str) -> tuple[list[str], list[float]]:
    """The words of an answer, and its numbers."""
    text = text.replace(",", "").replace("\u00a0", " ")
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    words = re.findall(r"[^\s\d:.]+", re.sub(number, " ", text))
    return words, [float(x) for x in re.findall(number, text)]


@pytest.mark.parametrize("number", range(10))
def test_a_question_is_answered_by_the_page_alone(example, page, number):  # noqa: F811
    question = questions()[number]
    opened(page, example)
    for click in question.clicks:
        if click.value is None:
            page.click(click.selector)
        elif page.locator(click.selector).get_attribute("type") == "range":
            page.locator(click.selector).fill(click.value)
        else:
            page.select_option(click.selector, click.value)
        page.wait_for_timeout(150)
    text = ", ".join(page.locator(place).first.inner_text() for place in question.reads)
    words, numbers = answered(text)
    assert words == answered(question.answer)[0]
    # Attention weights are stored in steps of 1/255, a logit's parts are of rounded activations.
    assert numbers == pytest.approx(answered(question.answer)[1], rel=0.01, abs=0.003)


def test_an_answer_can_be_wrong():
    assert answered("layer 1, head 5: 0.985") == (["layer", "head"], [1, 5, 0.985])
    assert answered("'Boston'")[0] != answered("'Paris'")[0]
    assert len({question.text for question in questions()}) == 10
    assert isinstance(questions()[0], Question)
