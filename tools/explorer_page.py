"""The committed page of the explorer, and its pictures.

`python -m tools.update_docs` makes the page again where it is not current. `python -m
tools.explorer_page` makes the pictures of it again, with Chromium, and the page if need be. Needs
the `docs` extra.
"""

import base64
import io
import json
import re
import shutil
import zlib
from functools import cache
from typing import Any

import numpy as np

from src.explorer import explore
from src.inference import Message, SamplingArgs

from .pages import ROOT
from .runs import PROMPT, bundled_model

PAGE = ROOT / "docs" / "explorer" / "example.html"
# View, scheme, what is clicked first, and the height: the width is 1280.
_PICTURES = (
    ("attention", "light", ("#drawn-from",), 1000),
    ("residual", "light", ("#drawn-from",), 830),
    ("map", "dark", (), 900),
    ("sampling", "light", (), 560),
)
BROWSER_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_ELEMENT = re.compile(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>')


@cache
def current_page() -> str:
    """Return the page as it should be: the committed one, if it says the same but for times."""
    made = explore(bundled_model(), [Message("user", PROMPT)], 8, SamplingArgs(seed=1))
    committed = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return committed if is_same(committed, made) else str(made)


def is_same(first: str, second: str) -> bool:
    """Return whether two pages have the same sources and say the same of a run, but for times.

    Numbers that NumPy computed may differ in their last digits from machine to machine.
    """
    return _ELEMENT.sub("", first) == _ELEMENT.sub("", second) and _read(first) == _read(second)


class _Numbers:
    """A float, or an array, which equals another whose last digits differ."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Numbers):
            return False
        a, b = self._values, other._values
        rtol, atol = (1e-4, 1e-4 if a.ndim else 1e-6) if a.dtype.kind == "f" else (0, 0)
        is_alike = (a.dtype, a.shape) == (b.dtype, b.shape)
        return is_alike and np.allclose(a, b, rtol, atol, equal_nan=True)


def _read(page: str) -> Any:
    """Return the document of a page, with its arrays in their places and without times."""
    data = {name: zlib.decompress(base64.b64decode(x)) for name, x in _ELEMENT.findall(page)}

    def known(x: dict[str, Any]) -> Any:
        if "block" in x:
            kind = "uint16" if x["dtype"] == "bfloat16" else x["dtype"]
            return _Numbers(np.frombuffer(data[f"block-{x['block']}"], kind).reshape(x["shape"]))
        return {key: value for key, value in x.items() if key not in ("seconds", "machine")}

    document = json.loads(
        data["document"], object_hook=known, parse_float=lambda text: _Numbers(float(text))
    )
    for run in document["runs"]:
        for event in run["events"]:
            event[6] = None  # its seconds
    return document


def draw_pictures() -> None:
    """Make the pictures of the committed page: eight bits a pixel."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER_FLAGS)
        for view, scheme, clicks, height in _PICTURES:
            page = browser.new_page(
                color_scheme="dark" if scheme == "dark" else "light",
                viewport={"width": 1280, "height": height},
                offline=True,
            )
            page.goto(PAGE.as_uri())
            page.wait_for_selector("html[data-ready]")
            for selector in (f"#tab-{view}", *clicks):
                page.click(selector)
                page.wait_for_timeout(300)
            page.evaluate("document.activeElement.blur()")
            image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            image = image.quantize(256, dither=Image.Dither.NONE)
            image.save(PAGE.with_name(f"{view}.png"), optimize=True)
        browser.close()


if __name__ == "__main__":
    PAGE.write_text(current_page(), encoding="utf-8")
    draw_pictures()
