"""A document, its arrays, and its page, as one HTML file.

Arrays are deflated when they are added, and counted as bytes of the file.

The page runs one script: a Content-Security-Policy allows only this script and its style,
by their hashes. Data are in elements that no browser runs; base64, and JSON with `<`
escaped, cannot end such an element. The script creates only text nodes, which
`require-trusted-types-for` enforces.
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
Reference = dict[str, Any]  # block, dtype and shape, for JSON

# The page itself, the stages and their chapter, which are always included.
_PAGE_BYTES = 250_000
# The share of each kind of array in the rest. Events and texts use the remainder.
SHARES: Mapping[str, float] = {
    "logits": 0.47,
    "attention": 0.34,
    "values": 0.08,
    "lens": 0.06,
    "residual": 0.03,
}
# In megabytes; below it the page and the texts leave no room for arrays.
_SMALLEST_LIMIT = 1.0
DEFAULT_LIMIT = 12.0

_VERSION = 1  # of the document
_PAGE = Path(__file__).resolve().parent / "page"
# Joined in this order into one script.
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
<title>Inside a run</title>
<style>{css}</style>
</head>
<body>
<main id="page"><p>This page needs JavaScript, which it contains.</p></main>
"""


@dataclass(frozen=True)
class DeflatedArray:
    """An array as bytes of the file."""

    data: bytes
    dtype: str  # the dtype for the page
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The bytes of the array in the file, as base64 in its element."""
        return 4 * -(-len(self.data) // 3) + 48


class Store:
    """Deflated arrays within a size limit.

    Args:
        limit: The largest file, in megabytes of 10^6 bytes.
        runs: The number of runs that share it.

    Attributes:
        room: The remaining bytes of each kind of array.

    Raises:
        ExplorerError: The limit is too small.
    """

    def __init__(self, limit: float = DEFAULT_LIMIT, runs: int = 1) -> None:
        if not limit >= _SMALLEST_LIMIT:
            raise ExplorerError(
                f"--explore-limit: expected at least {_SMALLEST_LIMIT:g} MB, got "
                f"{limit:g}"
            )
        self.limit = limit
        self.blocks: list[bytes] = []
        room = (limit * 1e6 - _PAGE_BYTES) / runs
        self._shares = {kind: int(share * room) for kind, share in SHARES.items()}
        self.begin_run()

    def begin_run(self) -> None:
        """Reset the share of each kind of array for the next run."""
        self.room = dict(self._shares)

    @property
    def free(self) -> int:
        """The remaining bytes for arrays of this run."""
        return sum(self.room.values())

    def lend(self, kind: str) -> None:
        """Assign the remaining bytes of all kinds to one kind of array."""
        self.room = {**dict.fromkeys(self.room, 0), kind: self.free}

    def add(self, array: Array, kind: str, dtype: str | None = None) -> Reference | None:
        """Store an array if there is room for it.

        Args:
            array: Integers or float32.
            kind: One of `SHARES`.
            dtype: The dtype for the page; by default the dtype of the array.

        Returns:
            The reference for the page, or None if the array was left out.
        """
        return self.add_deflated(_deflate(array, dtype or array.dtype.name), kind)

    def add_deflated(self, array: DeflatedArray, kind: str) -> Reference | None:
        """Store a deflated array if there is room for it."""
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
        values: The elements, float32 or complex64, as in events.
        dtype: The dtype of the tensor; for bfloat16 the 16 bits are stored.
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
    """Yield the parts of the file: the page, the document of all runs, their arrays."""
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
    """Write the file, or keep an existing file on failure; return the bytes.

    Raises:
        ExplorerError: The file cannot be written.
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
