"""Chromium, where it is installed, and pages whose console stays empty."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

api = pytest.importorskip("playwright.sync_api", reason="the docs extra is not installed")

BROWSER_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def chromium(profile: Path, **options: Any) -> Iterator[Any]:
    """Starts a browser with a profile of its own."""
    path = shutil.which("chromium") or pytest.skip("chromium is not installed")
    with api.sync_playwright() as play:
        yield play.chromium.launch_persistent_context(
            profile, executable_path=path, args=BROWSER_FLAGS, **options
        )


@contextmanager
def quiet_page(browser: Any) -> Iterator[tuple[Any, list[str]]]:
    """Opens a page that says nothing and asks only for files; gives it, and what it asks
    for.
    """
    page = browser.new_page()
    told = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url))
    page.on("dialog", lambda dialog: told.append(dialog.message))
    yield page, told
    page.close()
    assert [text for text in told if not text.startswith("file://")] == []
