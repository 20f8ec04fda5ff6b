"""A document and the page that shows it, as one HTML file.

The page runs one script, its own: a Content-Security-Policy allows it and its style by their
hashes, and nothing else. Data are in elements that no browser runs; base64 and JSON whose `<` is
escaped cannot end them. The script makes text nodes only, which `require-trusted-types-for` holds.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import __version__
from ..untrusted import write_whole
from .store import ExplorerError, Store
from .texts import sources, stages

_VERSION = 1  # of the document
_PAGE = Path(__file__).resolve().parent / "page"
# In this order they are one script.
SCRIPTS = (
    "data.js", "draw.js", "map.js", "attention.js", "residual.js", "sampling.js", "cache.js",
    "values.js", "compare.js", "tour.js", "main.js",
)  # fmt: skip
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script}'; \
style-src '{style}'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
trusted-types 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>A run from the inside</title>
<style>{css}</style>
</head>
<body>
<main id="page"><p>This page needs JavaScript, which it carries itself.</p></main>
"""


def write_html(runs: list[dict[str, Any]], store: Store) -> Iterator[str]:
    """Yield the parts of the file: the page, the document of all runs, the arrays that it names."""
    document = {
        "version": _VERSION,
        "program": f"llama-bolts {__version__}",
        "limit": store.limit,
        "stages": stages(),
        "sources": sources(),
        "runs": runs,
    }
    script = '(() => {\n"use strict";\n' + "".join(map(_read, SCRIPTS)) + "start();\n})();\n"
    style = _read("style.css")
    yield _HEAD.format(script=_hash(script), style=_hash(style), css=style)
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    yield _element("document", zlib.compress(text.encode(), 9))
    for number, block in enumerate(store.blocks):
        yield _element(f"block-{number}", block)
    yield f"<script>{script}</script>\n</body>\n</html>\n"


def save_html(runs: list[dict[str, Any]], store: Store, path: Path) -> int:
    """Write the file, or leave what was there as it was; return its bytes.

    Raises:
        ExplorerError: It cannot be written.
    """
    parts = [part.encode() for part in write_html(runs, store)]
    write_whole(path, parts, ExplorerError, is_private=False)
    return sum(map(len, parts))


def _element(name: str, data: bytes) -> str:
    text = base64.b64encode(data).decode("ascii")
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
