"""The chat page in Chromium, against a real port."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import Running
from tests.support.browser import api, chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["light", "dark"])
def browser(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile"), color_scheme=request.param) as started:
        yield started


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """The page, whose console stays empty and that asks only this server."""
    page, told, asked = browser.new_page(), [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.url)
    api.expect(page.locator("#model")).to_have_text("bundled")
    yield page
    page.close()
    assert [text for text in told if "status of 400" not in text] == []
    assert all(url.startswith(server.url) for url in asked)


def ask(page: Any, text: str, count: int) -> str:
    page.fill("#question", text)
    page.press("#question", "Enter")
    api.expect(page.locator("article.assistant .below")).to_have_count(count, timeout=30_000)
    said = page.locator("article.assistant .said").last.text_content()
    assert isinstance(said, str)
    return said


def test_a_chat_by_keyboard_has_the_answers_of_the_server(page, server):
    page.click("summary")
    page.fill("#temperature", "0")
    first = server.chat("What is the capital of Italy?")["choices"][0]["message"]["content"]
    assert ask(page, "What is the capital of Italy?", 1) == first
    texts = ("What is the capital of Italy?", first, "And France?")
    roles = ("user", "assistant", "user")
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
    second = server.chat(messages=messages)["choices"][0]["message"]["content"]
    assert ask(page, "And France?", 2) == second
    assert "complete" in page.locator(".below").last.text_content()
    page.locator(".said").last.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip tr").count() >= 5
    assert re.search(r"\d+\.\d percent; likeliest:", page.locator("#status").text_content())
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    page.click("#new")
    assert page.locator("article").count() == 0


def test_a_token_shows_its_chances_and_markup_is_text(page, server):
    hostile = "<img src=x onerror=document.title='owned'> </script><b>&amp;"
    ask(page, hostile, 1)
    assert page.locator("article.user .said").text_content() == hostile
    assert page.locator("article img, article b").count() == 0
    assert page.title() == "llama-bolts"
    page.locator(".token").first.hover()
    assert page.locator("#tip").is_visible()
    assert page.locator("#tip tr.drawn").count() == 1
    assert page.locator("#tip tr").count() >= 5
    answer = page.request.get(server.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_an_answer_can_be_stopped_and_the_chat_goes_on(page):
    page.click("summary")
    page.fill("#temperature", "2")
    page.fill("#top_k", "0")
    page.fill("#top_p", "1")
    page.fill("#question", "Tell me a story.")
    page.press("#question", "Enter")
    page.wait_for_selector(".token")
    if page.locator("#stop").is_visible():
        page.keyboard.press("Escape")
    page.wait_for_selector("article.assistant .below", state="attached")
    page.fill("#temperature", "0")
    assert ask(page, "What is the capital of Italy?", 2)


def test_a_refusal_is_shown_and_the_question_is_kept(page):
    page.click("summary")
    page.fill("#top_p", "7")
    page.fill("#question", "hi")
    with page.expect_response(lambda response: response.status == 400):
        page.press("#question", "Enter")
    page.wait_for_selector(".error")
    assert "top_p" in page.locator(".error").text_content()
    assert page.input_value("#question") == "hi"


def test_it_looks_inside_of_an_answer(page, browser):
    ask(page, "What is the capital of Italy?", 1)
    page.click("text=Look inside")
    page.wait_for_selector("text=Open the run", timeout=60_000)
    with browser.expect_page() as opened:
        page.click("text=Open the run")
    api.expect(opened.value.locator("#page")).to_contain_text("Rome", timeout=30_000)
    assert opened.value.title() == "A run from the inside"
    opened.value.close()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 700})
    ask(page, "x" * 300, 1)
    page.click("summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("summary")
    page.locator(".token").first.click()
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
