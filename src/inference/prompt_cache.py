"""Prompt caches on disk: keys and values of tokens that were run, for a later process.

A file begins with `MAGIC` and the length of a header as 8 bytes, the lowest first. The header is
JSON: the version of the program, the instruction set, what identifies the model, and the blocks,
each with the block before it (-1 for none), its tokens and the SHA-256 of its data. Then, block by
block and layer by layer, come the keys and then the values, [positions, K, h] in the dtype of the
activations. Nothing in it is run, and no size is believed that the file does not have.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, ml
from ..checkpoint.mapped_file import file_fingerprint
from ..model import Model
from ..untrusted import (
    is_integer,
    label_of,
    open_regular,
    parse_strict_json,
    reason_of,
    shown,
    write_whole,
)
from .engine import InferenceEngine
from .errors import PromptCacheError

MAGIC = b"\x89LBcache"
BLOCK = ml.BLOCK_POSITIONS
# Of a header, and of the blocks that it names.
_MOST_HEADER_BYTES, _MOST_BLOCKS = 4 << 20, 2048
_KEYS = {"version", "isa", "model", "blocks"}

# The block before it or -1, its tokens, and the position of the first of them in the caches.
SavedBlock = tuple[int, Sequence[int], int]
Caches = Sequence[ml.KeyValueCache]


def fingerprint(model: Model) -> str:
    """Return what identifies a model: its sizes and dtypes, and its files with samples of them.

    Raises:
        PromptCacheError: A weight file cannot be read.
    """
    dtypes = sorted((name, str(weight.dtype)) for name, weight in model.tensors.items())
    digest = hashlib.sha256(repr((model.args, dtypes)).encode())
    for path in sorted(model.checkpoint.files):
        found = file_fingerprint(path, PromptCacheError), path.stat().st_mtime_ns
        digest.update(repr(found).encode())
    return digest.hexdigest()


def save_blocks(path: Path, model: Model, caches: Caches, blocks: Sequence[SavedBlock]) -> None:
    """Write a file as a whole or not at all; it can be read by its owner alone.

    Args:
        path: The file; one that is there is replaced.
        model: What made the keys and values.
        caches: Where they are, for each layer.
        blocks: Each after the one before it; at most 2048 are written.

    Raises:
        PromptCacheError: It cannot be written.
    """
    blocks = blocks[:_MOST_BLOCKS]
    saved = [
        {"parent": parent, "ids": list(ids), "sha256": _digest(caches, first, len(ids))}
        for parent, ids, first in blocks
    ]
    header = json.dumps(_expected(model) | {"blocks": saved}, separators=(",", ":")).encode()
    start = MAGIC + len(header).to_bytes(8, "little") + header
    data = (part for _, ids, first in blocks for part in _data(caches, first, len(ids)))
    write_whole(path, itertools.chain([start], data), PromptCacheError)


def _expected(model: Model) -> dict[str, Any]:
    """Return what must be equal for the same tokens to have the same bits."""
    isa = ml.build_info()["isa"]
    return {"version": __version__, "isa": isa, "model": fingerprint(model)}


def _data(caches: Caches, first: int, count: int) -> Iterator[memoryview]:
    """Yield the keys and values of some positions, layer by layer."""
    for cache in caches:
        for x in ml.read_cache(cache, first, first + count):
            yield x.bits().view(np.uint8).data


def _digest(caches: Caches, first: int, count: int) -> str:
    digest = hashlib.sha256()
    for part in _data(caches, first, count):
        digest.update(part)
    return digest.hexdigest()


def _error(path: Path, text: str) -> PromptCacheError:
    return PromptCacheError(f"{label_of(path)}: {text}")


class SavedBlocks:
    """A file that was written by `save_blocks`, for the same model, version and instruction set.

    Args:
        path: The file.
        model: The model that is to go on with it.

    Attributes:
        blocks: Of each, the block before it or -1, and its tokens, at least one.

    Raises:
        PromptCacheError: It is missing, damaged, or of another model, version or instruction set.
    """

    def __init__(self, path: Path, model: Model) -> None:
        self._path = path
        self._file = open_regular(path, PromptCacheError)
        try:
            self._read_header(model)
        except BaseException:
            self.close()
            raise

    def _read_header(self, model: Model) -> None:
        path, args = self._path, model.args
        size = os.fstat(self._file.fileno()).st_size
        start = self._file.read(len(MAGIC) + 8)
        length = int.from_bytes(start[len(MAGIC) :], "little")
        if len(start) < len(MAGIC) + 8 or not start.startswith(MAGIC):
            raise _error(path, "kind: expected a prompt cache of llama-bolts, got another file")
        most = min(_MOST_HEADER_BYTES, size - len(start))
        if length > most:
            raise _error(path, f"header: expected at most {most} bytes, got {length}")
        try:
            header = parse_strict_json(self._file.read(length))
        except ValueError as error:
            raise _error(path, f"header: expected JSON, got {shown(str(error))}") from None
        if not isinstance(header, dict) or header.keys() != _KEYS:
            raise _error(path, f"header: expected an object of {', '.join(sorted(_KEYS))}")
        for key, value in _expected(model).items():
            if header[key] != value:
                got = shown(str(header[key]))
                raise _error(path, f"{key}: expected {value}, got {got}")
        self._row_bytes = args.n_kv_heads * args.head_dim * args.dtype.itemsize
        self.blocks, self._digests = list[tuple[int, list[int]]](), list[str]()
        self._starts = [len(start) + length]
        found_blocks = header["blocks"]
        if not isinstance(found_blocks, list) or len(found_blocks) > _MOST_BLOCKS:
            raise _error(path, f"blocks: expected a list of at most {_MOST_BLOCKS}")
        for found in found_blocks:
            self._add(found, args.vocab_size)
            count = len(self.blocks[-1][1])
            self._starts.append(self._starts[-1] + count * 2 * args.n_layers * self._row_bytes)
        if self._starts[-1] != size:
            raise _error(path, f"size: expected {self._starts[-1]} bytes, got {size}")

    def _add(self, found: object, vocab_size: int) -> None:
        """Check a block of the header and note it."""
        where = f"blocks[{len(self.blocks)}]"
        if not isinstance(found, dict) or found.keys() != {"parent", "ids", "sha256"}:
            raise _error(self._path, f"{where}: expected an object of parent, ids, sha256")
        parent, ids, digest = found["parent"], found["ids"], found["sha256"]
        if not is_integer(parent, -1, len(self.blocks) - 1):
            raise _error(self._path, f"{where}.parent: expected -1 or a block before it")
        if parent >= 0 and len(self.blocks[parent][1]) != BLOCK:
            raise _error(self._path, f"{where}.parent: expected a block of {BLOCK} tokens")
        if not isinstance(ids, list) or not 1 <= len(ids) <= BLOCK:
            raise _error(self._path, f"{where}.ids: expected 1 to {BLOCK} tokens")
        if not all(is_integer(token, 0, vocab_size - 1) for token in ids):
            raise _error(self._path, f"{where}.ids: expected numbers from 0 to {vocab_size - 1}")
        self.blocks.append((parent, ids))
        self._digests.append(str(digest))

    def read_into(self, number: int, caches: Caches, first: int) -> None:
        """Write the keys and values of a block into caches, from a position on.

        Raises:
            PromptCacheError: They are not those that were saved, or cannot be read; the positions
                hold no numbers that mean anything then.
        """
        count = len(self.blocks[number][1])
        digest, part = hashlib.sha256(), count * self._row_bytes
        self._file.seek(self._starts[number])
        for cache in caches:
            xk, xv = (self._tensor(cache, count, part, digest) for _ in range(2))
            ml.write_cache(cache, first, xk, xv)
        if digest.hexdigest() != self._digests[number]:
            raise _error(self._path, f"blocks[{number}]: expected the data that was saved")

    def _tensor(self, cache: ml.KeyValueCache, count: int, nbytes: int, digest: Any) -> ml.Tensor:
        """Read the keys or values of one layer."""
        try:
            data = self._file.read(nbytes)
        except OSError as error:
            raise _error(self._path, f"cannot be read: {reason_of(error)}") from None
        if data is None or len(data) != nbytes:
            raise _error(self._path, f"size: expected {nbytes} more bytes, got the end")
        digest.update(data)
        x = ml.Tensor.empty((count, cache.heads, cache.head_dim), cache.dtype)
        x.bits()[...] = np.frombuffer(data, x.bits().dtype).reshape(x.shape)
        return x

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def save_prompt_cache(engine: InferenceEngine, path: Path) -> None:
    """Save what an engine has cached.

    Raises:
        PromptCacheError: The file cannot be written; or a trace ran, whose attention rounds
            differently.
    """
    if engine._cached.was_eager:
        raise _error(path, "tokens that ran under a trace cannot be kept")
    ids = engine.cached_ids
    starts = range(0, len(ids), BLOCK)
    blocks = [(number - 1, ids[at : at + BLOCK], at) for number, at in enumerate(starts)]
    save_blocks(path, engine.model, engine.context.caches, blocks)


def load_prompt_cache(engine: InferenceEngine, path: Path) -> int:
    """Let an engine begin with the tokens of a file; of several texts, with the first one.

    Returns:
        How many tokens are cached now: those that fit into the context.

    Raises:
        PromptCacheError: As from `SavedBlocks`; nothing is cached then.
        InferenceError: Another thread is using the engine.
    """
    engine.reset()
    with contextlib.closing(SavedBlocks(path, engine.model)) as saved:
        before, found = -1, list[int]()
        for number, (parent, ids) in enumerate(saved.blocks):
            if parent != before or len(found) + len(ids) > engine.sequence_length:
                continue
            saved.read_into(number, engine.context.caches, len(found))
            found += ids
            before = number
    engine._cached.adopt(found)
    return len(found)
