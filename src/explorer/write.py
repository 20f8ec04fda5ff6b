"""Write a document, its arrays, and the page that displays them as one HTML file.

Arrays are compressed when they are added, and their size in the file is counted.

The page runs a single script. A Content-Security-Policy only allows this script and the
page's style sheet, identified by their hashes. Data are stored in script elements of a
type that browsers do not run, as base64, which cannot contain an end tag. The script
inserts text only as text nodes, which `require-trusted-types-for` enforces.
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
Reference = dict[str, Any]  # the block number, dtype and shape of an array, for JSON

# Size of the page, the stages and their chapter, which are always included.
_PAGE_BYTES = 250_000
# Each kind of array's share of the remaining space. Events and text use what is left.
SHARES: Mapping[str, float] = {
    "logits": 0.47,
    "attention": 0.34,
    "values": 0.08,
    "lens": 0.06,
    "residual": 0.03,
}
# Minimum size limit, in megabytes. Below it, no space for arrays would be left.
_SMALLEST_LIMIT = 1.0
DEFAULT_LIMIT = 12.0

_VERSION = 1  # the document format
_PAGE = Path(__file__).resolve().parent / "page"
# Files that are concatenated, in this order, into one script.
SCRIPTS = (
    "data.js",
    "draw.js",
    "map.js",
    "attention.js",
    "residual.js",
    "sampling.js",
    "cache.js",
    "experts.js",
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
<main id="page"><p>This page needs JavaScript. Its script is part of the page.</p></main>
"""


@dataclass(frozen=True)
class DeflatedArray:
    """A compressed array."""

    data: bytes
    dtype: str  # the dtype that the page reads
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size of the array's element in the file, which uses base64, in bytes."""
        return 4 * -(-len(self.data) // 3) + 48


class Store:
    """A store for compressed arrays with a size limit.

    Args:
        limit: The maximum file size, in megabytes (10^6 bytes).
        runs: The number of runs that share the limit.

    Attributes:
        room: The remaining space for each kind of array in this run, in bytes.

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
        """Reset the space for each kind of array, for the next run."""
        self.room = dict(self._shares)

    @property
    def free(self) -> int:
        """The remaining space for all arrays in this run, in bytes."""
        return sum(self.room.values())

    def lend(self, kind: str) -> None:
        """Reassign the remaining space of all kinds of arrays to one kind."""
        self.room = {**dict.fromkeys(self.room, 0), kind: self.free}

    def add(self, array: Array, kind: str, dtype: str | None = None) -> Reference | None:
        """Compress and store an array if there is space for it.

        Args:
            array: An array of integers or float32.
            kind: The kind of array, a key of `SHARES`.
            dtype: The dtype that the page reads. Defaults to the array's dtype.

        Returns:
            The reference for the page, or None if there is not enough space.
        """
        return self.add_deflated(_deflate(array, dtype or array.dtype.name), kind)

    def add_deflated(self, array: DeflatedArray, kind: str) -> Reference | None:
        """Store a compressed array if there is space for it."""
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
    """Compress the elements of a tensor without loss.

    Args:
        values: The elements as float32 or complex64, as in events.
        dtype: The dtype of the tensor. Elements of a bfloat16 tensor are stored in 16
            bits, all others as float32.
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
    """Yield the parts of the file: page header, document, arrays and script."""
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
    """Write the file, and return its size in bytes.

    Raises:
        ExplorerError: The file cannot be written. An existing file is left unchanged.
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
