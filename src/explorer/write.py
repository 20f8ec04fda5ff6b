"""A document, its arrays, and the page that shows it, as one HTML file.

Arrays are deflated when they are made, and counted as bytes of the file.

The page runs one script, its own: a Content-Security-Policy allows it and its style by
their hashes, and nothing else. Data are in elements that no browser runs; base64 and JSON
whose `<` is escaped cannot end them. The script makes text nodes only, which
`require-trusted-types-for` holds.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..sampling_steps import STEPS_IN_ORDER
from ..untrusted import write_whole
from .errors import ExplorerError
from .texts import sources, stages

Array = npt.NDArray[Any]
Reference = dict[str, Any]  # block, dtype and shape, as JSON holds them

# The page itself, the stages and their chapter, which are always written.
_PAGE_BYTES = 250_000
# Which part of the rest each kind of array may take; the events and the texts have what
# is left.
SHARES: Mapping[str, float] = {
    "logits": 0.47,
    "attention": 0.34,
    "values": 0.08,
    "lens": 0.06,
    "residual": 0.03,
}
_SMALLEST_LIMIT = (
    1.0  # megabytes: below it the page and the texts leave no room for numbers
)
DEFAULT_LIMIT = 12.0

_VERSION = 1  # of the document
_PAGE = Path(__file__).resolve().parent / "page"
# In this order they are one script.
SCRIPTS = (
    "data.js",
    "draw.js",
    "map.js",
    "attention.js",
    "residual.js",
    "sampling.js",
    "cache.js",
    "values.js",
    "compare.js",
    "tour.js",
    "main.js",
)
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'; \
require-trusted-types-for 'script'; trusted-types 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>A run from the inside</title>
<style>{css}</style>
</head>
<body>
<main id="page"><p>This page needs JavaScript, which it carries itself.</p></main>
"""


@dataclass(frozen=True)
class DeflatedArray:
    """An array as bytes of the file."""

    data: bytes
    dtype: str  # what the page is told
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its bytes in the file, as base64, with the element around it."""
        return 4 * -(-len(self.data) // 3) + 48


class Store:
    """Deflated arrays, and how much of the limit they took.

    Args:
        limit: The largest file to be written, in megabytes of 10^6 bytes.
        runs: How many runs share it.

    Attributes:
        room: How many bytes of the file each kind of array can still take.

    Raises:
        ExplorerError: A limit that leaves no room.
    """

    def __init__(self, limit: float = DEFAULT_LIMIT, runs: int = 1) -> None:
        if not limit >= _SMALLEST_LIMIT:
            rule = f"expected at least {_SMALLEST_LIMIT:g} MB, got {limit:g}"
            raise ExplorerError(f"--explore-limit: {rule}")
        self.limit = limit
        self.blocks: list[bytes] = []
        room = (limit * 1e6 - _PAGE_BYTES) / runs
        self._shares = {kind: int(share * room) for kind, share in SHARES.items()}
        self.begin_run()

    def begin_run(self) -> None:
        """Give each kind of array its share again, for the next run."""
        self.room = dict(self._shares)

    @property
    def free(self) -> int:
        """How many bytes of the file the arrays of this run can still take."""
        return sum(self.room.values())

    def lend(self, kind: str) -> None:
        """Give the room that all other kinds left to one kind of array."""
        self.room = {**dict.fromkeys(self.room, 0), kind: self.free}

    def add(self, array: Array, kind: str, dtype: str | None = None) -> Reference | None:
        """Keep an array, unless there is no room for it.

        Args:
            array: Integers or float32, contiguous in C order once it is stored.
            kind: One of `SHARES`.
            dtype: What the page is told; that of the array by default.

        Returns:
            Where the page finds it; None if it was left out.
        """
        return self.add_deflated(_deflate(array, dtype or array.dtype.name), kind)

    def add_deflated(self, array: DeflatedArray, kind: str) -> Reference | None:
        """Keep an array that is deflated already, unless there is no room for it."""
        if array.size > self.room[kind]:
            return None
        self.room[kind] -= array.size
        self.blocks.append(array.data)
        return {
            "block": len(self.blocks) - 1,
            "dtype": array.dtype,
            "shape": list(array.shape),
        }


def deflate_values(values: Array, dtype: str) -> DeflatedArray:
    """Deflate the elements of a tensor, bit for bit.

    Args:
        values: float32 or complex64, as events carry them.
        dtype: That of the tensor: of bfloat16, the 16 bits are stored.
    """
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values).view(np.float32).reshape(*values.shape, 2)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16
        return _deflate(bits.astype(np.uint16), "bfloat16")
    return _deflate(values.astype(np.float32), "float32")


def _deflate(array: Array, dtype: str) -> DeflatedArray:
    data = zlib.compress(np.ascontiguousarray(array).data, 6)
    return DeflatedArray(data, dtype, array.shape)


def write_html(runs: list[dict[str, Any]], store: Store) -> Iterator[str]:
    """Yield the parts of the file: the page, the document of all runs, the arrays that it
    names.
    """
    document = {
        "version": _VERSION,
        "program": f"llama-bolts {__version__}",
        "limit": store.limit,
        "stages": stages(),
        "sources": sources(),
        "steps": [
            {
                "name": step.name,
                "label": step.label,
                "off": step.off,
                "slider": None if step.slider is None else asdict(step.slider),
            }
            for step in STEPS_IN_ORDER
        ],
        "runs": runs,
    }
    script = (
        '(() => {\n"use strict";\n' + "".join(map(_read, SCRIPTS)) + "start();\n})();\n"
    )
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
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(
        "ascii"
    )
