"""The chat page in Chromium, against a real port."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.server.running import Running, running
from tests.support.browser import api, chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["light", "dark"])
def browser(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(
        tmp_path_factory.mktemp("profile"), color_scheme=request.param
    ) as started:
        yield started


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """The page, whose console stays empty and that asks only this server."""
    page = browser.new_page()
    told = []
    asked = []
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
    api.expect(page.locator("article.assistant .below")).to_have_count(
        count, timeout=30_000
    )
    said = page.locator("article.assistant .said").last.text_content()
    assert isinstance(said, str)
    return said


def test_a_chat_by_keyboard_has_the_answers_of_the_server(page, server):
    page.click("summary")
    page.fill("#temperature", "0")
    first = server.chat("What is the capital of Italy?")["choices"][0]["message"][
        "content"
    ]
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
    assert re.search(
        r"\d+\.\d percent; most probable:", page.locator("#status").text_content()
    )
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


@pytest.fixture
def bare_page(browser: Any, server: Running) -> Iterator[Any]:
    """The page, for errors that the browser reports on its console."""
    page = browser.new_page()
    page.goto(server.url)
    api.expect(page.locator("#model")).to_have_text("bundled")
    yield page
    page.close()


def error_of(page: Any, text: str) -> str:
    """Asks, and returns the sentence of the error; the question has to be kept."""
    before = page.locator(".error").count()
    page.fill("#question", text)
    page.press("#question", "Enter")
    api.expect(page.locator(".error")).to_have_count(before + 1, timeout=30_000)
    assert page.input_value("#question") == text.strip()
    said = page.locator(".error").last.text_content()
    assert isinstance(said, str)
    return said


def test_a_message_that_does_not_fit_has_the_sentence_of_the_terminal(bare_page):
    long = "one two " * 4000
    tokens = r"it takes (?:at least )?\d+ tokens, and the context has 4096"
    rule = rf"the message does not fit: {tokens}; shorten it"
    assert re.fullmatch(rule, error_of(bare_page, long))
    ask(bare_page, "What is the capital of Italy?", 2)
    rule = rf"the message does not fit: with the conversation {tokens}; start a new chat"
    assert re.fullmatch(rule, error_of(bare_page, long))


def fulfil(route: Any, **answer: Any) -> None:
    route.fulfill(**answer)


def test_a_server_that_is_busy_or_gone_is_a_sentence(bare_page):
    from src.inference.errors import ClosedError, QueueFullError, TimeLimitError
    from src.server.errors import refusal

    path = "**/v1/chat/completions"
    for error, expected in (
        (QueueFullError("[submit] 64 requests wait already"),
         "the server is busy: 64 requests wait already; send the message again"),
        (TimeLimitError("[submit] the time limit was over before the first token"),
         "the server is busy: the answer did not begin in time; send the message again"),
        (ClosedError("[submit] the engine was closed"), "the server is shutting down"),
    ):  # fmt: skip
        answer = refusal(error, print)
        fill = partial(fulfil, status=answer.status, json=answer.body)
        bare_page.route(path, fill)
        assert error_of(bare_page, "hi") == expected
        bare_page.unroute(path)
    bare_page.route(path, lambda route: route.abort())
    gone = "the server cannot be reached; send the message again"
    assert error_of(bare_page, "hi") == gone
    bare_page.unroute(path)
    cut = "the connection to the server was lost, so the answer is incomplete"
    bare_page.route(
        path, partial(fulfil, status=200, content_type="text/event-stream", body="")
    )
    assert error_of(bare_page, "hi") == cut
    bare_page.unroute(path)
    assert ask(bare_page, "What is the capital of Italy?", 6)


def test_a_key_that_is_missing_or_wrong_is_a_sentence(browser, tmp_path):
    with running(tmp_path, "--api-key", "sk-Secret") as locked:
        page = browser.new_page()
        page.goto(locked.url)
        missing = "the server requires an API key; enter it in Settings"
        api.expect(page.locator("#model")).to_have_text(missing)
        assert error_of(page, "hi") == missing
        page.click("summary")
        for key in ("sk-Other", "s\u00e9cret", "a b"):
            page.fill("#key", key)
            assert error_of(page, "hi") == "the API key is wrong; correct it in Settings"
        page.fill("#key", "sk-Secret")
        assert ask(page, "What is the capital of Italy?", 5)
        api.expect(page.locator("#model")).to_have_text("bundled")
        page.close()


def test_it_looks_inside_of_an_answer(page, browser):
    ask(page, "What is the capital of Italy?", 1)
    page.click("text=Look inside")
    page.wait_for_selector("text=Open the run", timeout=60_000)
    with browser.expect_page() as opened:
        page.click("text=Open the run")
    api.expect(opened.value.locator("#page")).to_contain_text("Rome", timeout=30_000)
    assert opened.value.title() == "Inside a run"
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
