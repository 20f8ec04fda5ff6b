"""Prompt caches on disk, which store keys and values for a later process.

A prompt cache is a safetensors file. Its metadata contains everything on which the bits
of the keys and values depend, except the tokens: the program version, the instruction
set, the activations of products, the dtype of the cache, a digest of the model, and a
digest of the adapters. The file contains these tensors:

- `blocks` [blocks, 3]: for each block, the index of its parent or -1, its length, and 1
  if layers with a window contain it, or else 0.
- `ids` [positions]: the token ids of all blocks.
- `rows` [rows, 2, K, bytes]: for each block, the keys and values [length, layers, 2, K,
  bytes] of the layers that contain it, as the cache stores them.
- `sha256` [blocks, 32]: for each block, a digest of the metadata, the parent's digest,
  the token ids, and the keys and values.

The digests detect corruption, and blocks that were copied from another file. They do not
contain a secret, so any program that can write the file can also write valid digests. A
prompt cache therefore needs the same trust as a model file.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, ml
from ..checkpoint import CheckpointError
from ..checkpoint.errors import mismatch
from ..checkpoint.mapped_file import file_fingerprint
from ..checkpoint.safetensors import SafetensorsFile
from ..checkpoint.safetensors_writer import NewTensor, bytes_of, safetensors_head
from ..model import Model
from ..untrusted import shown, some_of, write_whole
from .blocks import Block, BlockPool
from .engine import InferenceEngine
from .errors import PromptCacheError

BLOCK = ml.BLOCK_POSITIONS
_MOST_BLOCKS = 2048
# (parent's index or -1, tokens, cache position of the first token, has_windows)
SavedBlock = tuple[int, Sequence[int], int, bool]
# (parent's index or -1, tokens, keys and values [length, layers, 2, K, bytes],
# has_windows)
ReadBlock = tuple[int, list[int], ml.Tensor, bool]
Caches = Sequence[ml.KeyValueCache]


def compatibility_header(
    model: Model, adapters: ml.ScaledAdapters = ()
) -> dict[str, str]:
    """Return the compatibility header.

    It contains the version, the instruction set, the activations, the dtype of the cache,
    the model digest, and a digest of the adapters and their factors. Raise
    PromptCacheError if a weight file cannot be read.
    """
    dtypes = sorted((name, str(weight.dtype)) for name, weight in model.tensors.items())
    digest = hashlib.sha256(repr((model.args, dtypes)).encode())
    for path in sorted(model.checkpoint.files):
        fingerprint = file_fingerprint(path, PromptCacheError), path.stat().st_mtime_ns
        digest.update(repr(fingerprint).encode())
    changes = [(adapter.digest(), factor) for adapter, factor in adapters]
    changed = hashlib.sha256(repr(changes).encode())
    isa = str(ml.build_info()["isa"])
    return {
        "version": __version__,
        "isa": isa,
        "activations": str(model.activations),
        "cache": str(model.args.cache_dtype),
        "model": digest.hexdigest(),
        "adapters": "none" if not adapters else changed.hexdigest(),
    }


def _layers(model: Model, has_windows: bool) -> list[int]:
    """Return the layers that contain a block."""
    windows = enumerate(model.args.windows)
    return [n for n, window in windows if has_windows or window is None]


def _layout(model: Model, blocks: int, positions: int, rows: int) -> list[NewTensor]:
    """Return the tensors of a prompt cache, in file order."""
    args = model.args
    row_bytes = ml.KeyValueCache.row_bytes(args.head_dim, args.cache_dtype)
    shape = rows, 2, args.n_kv_heads, row_bytes
    return [
        NewTensor("blocks", "I32", (blocks, 3)),
        NewTensor("ids", "I32", (positions,)),
        NewTensor("rows", "U8", shape),
        NewTensor("sha256", "U8", (blocks, 32)),
    ]


def _digest(
    identity: Mapping[str, str], parent: bytes, ids: Sequence[int], rows: Any
) -> bytes:
    """Return the digest of a block.

    Args:
        identity: The file's metadata.
        parent: The digest of the parent block, or empty bytes.
        ids: The block's tokens.
        rows: The keys and values of these tokens, as a byte buffer.
    """
    digest = hashlib.sha256(repr(sorted(identity.items())).encode())
    digest.update(parent)
    digest.update(np.array(ids, np.int32).tobytes())
    digest.update(rows)
    return digest.digest()


def save_blocks(
    path: Path,
    model: Model,
    caches: Caches,
    blocks: Sequence[SavedBlock],
    adapters: ml.ScaledAdapters = (),
) -> None:
    """Write blocks to a file that only its owner can read, with parents before children.

    At most 2048 blocks are written. If a PromptCacheError is raised, an existing file is
    left unchanged.
    """
    blocks = blocks[:_MOST_BLOCKS]
    numbers = [(parent, len(ids), has_all) for parent, ids, _, has_all in blocks]
    ids = [token for _, tokens, _, _ in blocks for token in tokens]
    count = sum(length * len(_layers(model, has_all)) for _, length, has_all in numbers)
    metadata = compatibility_header(model, adapters)
    head, _ = safetensors_head(_layout(model, len(blocks), len(ids), count), metadata)

    def parts() -> Iterator[bytes | memoryview]:
        yield head
        yield np.array(numbers, np.int32).tobytes()
        yield np.array(ids, np.int32).tobytes()
        digests = list[bytes]()
        for parent, tokens, first, has_windows in blocks:
            end = first + len(tokens)
            layers = _layers(model, has_windows)
            arrays = [caches[layer].stored_rows(first, end) for layer in layers]
            rows = np.stack(arrays, 1).data if arrays else b""
            before = b"" if parent == -1 else digests[parent]
            digests.append(_digest(metadata, before, tokens, rows))
            yield rows
        yield from digests

    write_whole(path, parts(), PromptCacheError)


def write_rows(caches: Caches, first: int, rows: ml.Tensor) -> None:
    """Write a block's keys and values to the caches of some layers, from `first` on."""
    for index, cache in enumerate(caches):
        cache.store_rows(first, rows.numpy()[:, index])


def read_blocks(
    path: Path, model: Model, adapters: ml.ScaledAdapters = ()
) -> Iterator[ReadBlock]:
    """Yield the blocks of a file written by `save_blocks`, with parents before children.

    Raise PromptCacheError if the file is missing or damaged, or if it was written for
    another model, version, instruction set, activations or adapters.
    """
    try:
        source = SafetensorsFile(path)
        with contextlib.closing(source.file):
            yield from _checked_blocks(source, model, adapters)
    except CheckpointError as error:
        raise PromptCacheError(str(error)) from None


def _checked_blocks(
    source: SafetensorsFile, model: Model, adapters: ml.ScaledAdapters
) -> Iterator[ReadBlock]:
    label = source.file.label
    entries = source.entries
    V = model.args.vocab_size
    metadata = compatibility_header(model, adapters)
    for key, value in metadata.items():
        if (actual := source.metadata.get(key, "")) != value:
            raise mismatch(label, key, value, shown(actual))
    stored = {
        name: (entry.dtype, entry.shape, entry.is_misaligned)
        for name, entry in entries.items()
    }
    blocks, positions, count = (
        sum(stored[name][1][:1]) if name in stored else 0
        for name in ("blocks", "ids", "rows")
    )
    layout = _layout(model, min(blocks, _MOST_BLOCKS), positions, count)
    if stored != {new.name: (new.dtype, new.shape, False) for new in layout}:
        rule = f"the tensors of a prompt cache of at most {_MOST_BLOCKS} blocks"
        raise mismatch(label, "tensors", rule, some_of(stored))
    numbers, all_ids, all_rows, digests = (entries[new.name].make() for new in layout)
    stop = 0
    rows_stop = 0
    lengths = numbers.numpy()[:, 1]
    for number, (parent, length, flag) in enumerate(numbers.numpy().tolist()):
        start = stop
        stop = stop + length
        layers = _layers(model, flag == 1)
        rows_start = rows_stop
        rows_stop = rows_stop + length * len(layers)
        name = f"{label}: blocks[{number}]"
        ids = all_ids.numpy()[start:stop].tolist()
        if parent != -1 and not (0 <= parent < number and lengths[parent] == BLOCK):
            raise mismatch(name, "parent", "-1 or a full block before it", parent)
        if not 1 <= length <= BLOCK or len(ids) != length:
            raise mismatch(name, "length", f"1 to {BLOCK}, of {positions} in all", length)
        if not 0 <= min(ids) <= max(ids) < V:
            raise mismatch(name, "ids", f"0 to {V - 1}", f"{min(ids)} to {max(ids)}")
        if flag not in (0, 1):
            raise mismatch(name, "windows", "0 or 1", flag)
        if rows_stop > count:
            raise mismatch(name, "rows", f"at most {count} in all", rows_stop)
        source.file.check_unchanged()
        rows = all_rows[rows_start:rows_stop]
        before = b"" if parent == -1 else digests.numpy()[parent].tobytes()
        expected = _digest(metadata, before, ids, bytes_of(rows))
        if expected != digests.numpy()[number].tobytes():
            raise mismatch(name, "sha256", "the digest of its data", "another digest")
        yield parent, ids, rows.reshape(length, len(layers), *rows.shape[1:]), flag == 1


def save_pool(pool: BlockPool, path: Path) -> None:
    """Write a pool's blocks that belong to no group, or raise PromptCacheError."""
    blocks = [
        (parent, block.ids, block.place * BLOCK, block.has_windows)
        for parent, block in pool.blocks_to_save()
    ]
    save_blocks(path, pool.model, pool.memory.caches, blocks, pool.saved_adapters)


def load_pool(pool: BlockPool, path: Path) -> int:
    """Read saved blocks into a pool's free blocks, without a group (`group=None`).

    Returns:
        The number of tokens that were read.

    Raises:
        PromptCacheError: See `read_blocks`. Blocks that precede a damaged block are kept.
    """
    tokens = 0
    adopted: dict[int, Block | None] = {-1: None}
    saved = read_blocks(path, pool.model, pool.saved_adapters)
    for number, (parent, ids, rows, has_windows) in enumerate(saved):
        place = pool.free_place()
        if parent not in adopted or place is None:
            continue
        block = Block(place, adopted[parent], None, ids, has_windows=has_windows)
        if not pool.can_adopt(block):
            continue
        layers = _layers(pool.model, has_windows)
        caches = [pool.memory.caches[layer] for layer in layers]
        write_rows(caches, place * BLOCK, rows)
        pool.adopt(block)
        adopted[number] = block
        tokens += len(ids)
    return tokens


def save_prompt_cache(engine: InferenceEngine, path: Path) -> None:
    """Save an engine's cached tokens, with their keys and values.

    Raises:
        PromptCacheError: If the file cannot be written.
        InferenceError: If another thread is using the engine.
    """
    with engine.idle_pool() as pool:
        save_pool(pool, path)


def load_prompt_cache(
    engine: InferenceEngine, path: Path, adapters: ml.ScaledAdapters = ()
) -> int:
    """Load a prompt cache into an engine, for requests with the given adapters.

    If the file contains several sequences, only the first one is loaded.

    Returns:
        The number of cached tokens, which the context length limits.

    Raises:
        PromptCacheError: See `read_blocks`. The engine's cache is then empty.
        InferenceError: If another thread is using the engine.
    """
    with engine.idle_pool() as pool:
        pool.clear(adapters)
        try:
            return load_pool(pool, path)
        except BaseException:
            pool.clear()
            raise
