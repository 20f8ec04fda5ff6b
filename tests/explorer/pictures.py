"""Makes the pictures of the committed page again: `python -m tests.explorer.pictures`."""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.explorer.test_page import opened
from tests.support.browser import chromium
from tools.runs import PAGE

# View, scheme, what is clicked first, and the height: the width is 1280.
PICTURES = (
    ("attention", "light", (), 900),
    ("residual", "light", (), 610),
    ("map", "dark", (), 900),
    ("sampling", "light", (), 560),
)


def require_emoji_font() -> None:
    """Exit where no font has the emoji of the tokens, which would be drawn as empty
    boxes.
    """
    families = subprocess.check_output(["fc-list", ":charset=1f600", "family"], text=True)
    if not families.strip():
        sys.exit(
            "expected a font with emoji (on Debian: apt install fonts-noto-color-emoji)"
        )


def main() -> None:
    require_emoji_font()
    with (
        tempfile.TemporaryDirectory() as profile,
        chromium(Path(profile), offline=True) as browser,
    ):
        for view, scheme, clicks, height in PICTURES:
            page = browser.new_page()
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": 1280, "height": height})
            opened(page, PAGE)
            for selector in (f"#tab-{view}", *clicks):
                page.click(selector)
                page.wait_for_timeout(300)
            page.evaluate("document.activeElement.blur()")
            image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            image = image.quantize(256, dither=Image.Dither.NONE)  # eight bits a pixel
            image.save(PAGE.with_name(f"{view}.png"), optimize=True)


if __name__ == "__main__":
    main()
