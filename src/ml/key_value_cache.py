"""The key/value cache of one layer, stored in the order in which attention reads it."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .dtype import GGML_DTYPES, BlockDType, DType, bfloat16, dtype_named, float32, uint8
from .errors import DTypeError, ShapeError
from .kernels import ffi, lib
from .layout import check_slice, checked_ints, packed
from .op import Operand
from .tensor import Tensor

# Number of positions whose keys are interleaved, one per vector lane.
GROUP_POSITIONS: int = lib.LANES
# Positions per block. Attention processes one block at a time, and sequences that share a
# cache allocate it in blocks.
BLOCK_POSITIONS: int = lib.ATTENTION_BLOCK
# The dtype of 8-bit codes, with a float16 scale per 32 elements of a head.
CACHE_Q8_0 = GGML_DTYPES[8]
CacheDType: TypeAlias = DType | BlockDType
_WORD_BYTES = 4
_LINE_BYTES: int = lib.LINE
_MOST_BLOCKS = sys.maxsize // BLOCK_POSITIONS  # more would overflow a position in C


class _ReadOnly:
    """Base class with read-only attributes, which the kernels use without checks."""

    __slots__ = ()

    def _set(self, **attributes: object) -> None:
        """Set attributes at the end of the constructor, after all checks."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        """Reject the assignment with an AttributeError."""
        raise AttributeError(f"[{type(self).__name__}] {name} is read-only")

    def __delattr__(self, name: str) -> None:
        """Reject the deletion with an AttributeError."""
        raise AttributeError(f"[{type(self).__name__}] {name} is read-only")


class KeyValueCache(_ReadOnly, Operand):
    """The keys and values of one layer, for up to `positions` positions.

    Values are stored head by head as [K, C, h], where C is the number of positions,
    rounded up to a multiple of 16. Keys are interleaved, so that 16 positions form one
    vector. In words of 4 bytes (two adjacent bfloat16 elements, or one float32 element),
    they are stored as [K, C / 16, words, 16].

    In q8_0, 32 adjacent elements of a head are a block: 8-bit codes and a float16 scale,
    rounded as `ml.quantize` rounds weights. A block with an element that is not finite,
    or too large for the scale, becomes NaN. 16 positions of a head are a group of bytes:
    their codes, [h, 16] for keys and [16, h] for values, and then their scales
    [h / 32, 16].

    `ml.write_cache` writes to the cache, `ml.attention` reads from it, and
    `ml.read_cache` copies its contents to plain tensors. The cache does not record which
    positions have been written. Its memory is not initialized, so that the system
    allocates pages only when they are used.

    A cache with `ring_blocks` blocks is a ring: block b of 256 positions is stored at
    place b mod ring_blocks, where it replaces block b - ring_blocks. It contains the
    latest positions of a sequence, for attention with a window.

    Args:
        positions: The number of positions, at least 1.
        heads: K, the number of key/value heads, at least 0.
        head_dim: h, the size of a head, even and at least 2, and a multiple of 32 for
            q8_0.
        dtype: bfloat16, float32 or q8_0.
        ring_blocks: The number of blocks of a ring, at least 1 and fewer than the blocks
            of all positions. By default, all positions are stored.

    Attributes:
        keys: A tensor [K, C / 16, words, 16, elements per word].
        values: A tensor [K, C, h]. In q8_0, keys and values are uint8 tensors
            [K, C / 16, bytes per group].
        positions, heads, head_dim, dtype, ring_blocks: The arguments.
        capacity: C, the number of allocated positions.

    All attributes are read-only.

    Raises:
        ShapeError: If a size is not an integer or is out of range.
        DTypeError: If the dtype is not one of bfloat16, float32 and q8_0.
        TensorMemoryError: If the allocation fails.
    """

    __slots__ = (
        "_places",
        "capacity",
        "dtype",
        "head_dim",
        "heads",
        "keys",
        "positions",
        "ring_blocks",
        "values",
    )

    keys: Tensor
    values: Tensor
    positions: int
    heads: int
    head_dim: int
    dtype: CacheDType
    ring_blocks: int | None
    capacity: int
    # The place of each block as a C array, or NULL if block b is at place b.
    _places: Any

    def __init__(
        self,
        positions: int,
        heads: int,
        head_dim: int,
        dtype: CacheDType | str,
        ring_blocks: int | None = None,
    ) -> None:
        sizes = checked_ints("KeyValueCache", "sizes", (positions, heads, head_dim))
        positions, heads, head_dim = sizes
        if positions < 1 or heads < 0 or head_dim < 1:
            text = f"positions and head_dim must be >= 1 and heads >= 0: {sizes}"
            raise ShapeError(f"[KeyValueCache] {text}")
        if head_dim % 2:
            raise ShapeError(f"[KeyValueCache] head_dim must be even: {head_dim}")
        dtype = _cache_dtype("KeyValueCache", dtype)
        capacity = _round_up(positions)
        places = ffi.NULL
        if ring_blocks is not None:
            ring_blocks = checked_ints("KeyValueCache", "ring_blocks", (ring_blocks,))[0]
            blocks = -(-positions // BLOCK_POSITIONS)
            if not 1 <= ring_blocks < blocks:
                raise ShapeError(
                    "[KeyValueCache] ring_blocks must be >= 1 and < the blocks of all "
                    f"positions {blocks}: {ring_blocks}"
                )
            capacity = ring_blocks * BLOCK_POSITIONS
            places = ffi.new("ptrdiff_t[]", [b % ring_blocks for b in range(blocks)])
        groups = capacity // GROUP_POSITIONS
        key_shape: tuple[int, ...]
        value_shape: tuple[int, ...]
        if isinstance(dtype, BlockDType):
            if head_dim % dtype.block_size:
                raise ShapeError(
                    f"[KeyValueCache] head_dim must be a multiple of {dtype.block_size} "
                    f"for {dtype}: {head_dim}"
                )
            group_bytes = GROUP_POSITIONS * dtype.bytes_of(head_dim)
            key_shape = value_shape = (heads, groups, group_bytes)
            stored = uint8
        else:
            word_size = _WORD_BYTES // dtype.itemsize
            words = head_dim // word_size
            key_shape = (heads, groups, words, GROUP_POSITIONS, word_size)
            value_shape = (heads, capacity, head_dim)
            stored = dtype
        self._set(
            positions=positions,
            heads=heads,
            head_dim=head_dim,
            dtype=dtype,
            ring_blocks=ring_blocks,
            capacity=capacity,
            _places=places,
            keys=_allocate_aligned(key_shape, stored, "cache_k"),
            values=_allocate_aligned(value_shape, stored, "cache_v"),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = self.positions, self.heads, self.head_dim, self.dtype, self.ring_blocks
        return _unpickle_cache, (
            sizes,
            np.array(self.keys.bits()),
            np.array(self.values.bits()),
        )

    def traced_sizes(self) -> dict[str, int]:
        """Return the capacity C, which traces show."""
        return {"C": self.capacity}

    @staticmethod
    def bytes_for(
        positions: int, heads: int, head_dim: int, dtype: CacheDType | str
    ) -> int:
        """Return the size of such a cache in bytes: 2 * C * K * h * itemsize.

        In q8_0, 32 elements have 34 bytes.
        """
        row_bytes = KeyValueCache.row_bytes(head_dim, dtype)
        return 2 * _round_up(positions) * heads * row_bytes

    @staticmethod
    def row_bytes(head_dim: int, dtype: CacheDType | str) -> int:
        """Return the bytes of a head's key or value at one position."""
        dtype = _cache_dtype("row_bytes", dtype)
        if isinstance(dtype, BlockDType):
            return dtype.bytes_of(head_dim)
        return head_dim * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The total size of keys and values, in bytes."""
        return self.keys.nbytes + self.values.nbytes

    def first_kept(self, end: int) -> int:
        """Return the first position in the cache once `end` positions are written.

        It is 0 unless the cache is a ring whose blocks are fewer than those of the
        positions.
        """
        if self.ring_blocks is None:
            return 0
        blocks = -(-end // BLOCK_POSITIONS)
        return max(0, blocks - self.ring_blocks) * BLOCK_POSITIONS

    def stored_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the adjacent places of the positions start <= s < stop, in order.

        There is one range (first place, end), or one for each block of a ring.
        """
        if self.ring_blocks is None:
            yield start, stop
            return
        while start < stop:
            block, offset = divmod(start, BLOCK_POSITIONS)
            end = min(stop, start - offset + BLOCK_POSITIONS)
            first = block % self.ring_blocks * BLOCK_POSITIONS + offset
            yield first, first + end - start
            start = end

    def copy_block(self, source: int, target: int) -> None:
        """Copy block `source` of 256 positions to block `target`.

        Raises:
            ShapeError: If one of the blocks does not exist.
        """
        blocks = min(self.positions, self.capacity) // BLOCK_POSITIONS
        source, target = checked_ints("copy_block", "source and target", (source, target))
        for block in (source, target):
            if not 0 <= block < blocks:
                raise ShapeError(f"[copy_block] blocks must be in [0, {blocks}): {block}")
        size = BLOCK_POSITIONS // GROUP_POSITIONS
        end = target * size
        start = source * size
        if self.heads == 0:  # as on a rank without key/value heads
            return
        for x in (self.keys, self.values):
            groups = x.bits().reshape(self.heads, self.capacity // GROUP_POSITIONS, -1)
            groups[:, end : end + size] = groups[:, start : start + size]

    def stored_rows(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return a copy of the bytes of positions `start <= s < stop`.

        Returns:
            An array [stop - start, 2, K, bytes] of keys and values, each with its codes
            before its scales in q8_0.

        Raises:
            IndexOutOfRangeError: Unless `0 <= start <= stop <= positions`.
        """
        check_slice("stored_rows", start, stop, self.positions)
        rows = [
            np.concatenate(self._parts(views, start, stop), -1)
            for views in (self._key_views(), self._value_views())
        ]
        return np.stack(rows, 1)

    def store_rows(self, start: int, rows: npt.NDArray[np.uint8]) -> None:
        """Write rows that `stored_rows` of a cache with the same sizes returned.

        Raises:
            IndexOutOfRangeError: If the cache has too few positions.
            ShapeError: If the rows have another size.
        """
        stop = start + len(rows)
        check_slice("store_rows", start, stop, self.positions)
        row_bytes = self.row_bytes(self.head_dim, self.dtype)
        shape = (len(rows), 2, self.heads, row_bytes)
        if rows.shape != shape:
            raise ShapeError(
                f"[store_rows] rows.shape must equal {list(shape)}: {list(rows.shape)}"
            )
        places = self._group_and_lane(start, stop)
        for index, views in enumerate((self._key_views(), self._value_views())):
            first = 0
            for view in views:
                size = math.prod(view.shape[3:])
                part = rows[:, index, :, first : first + size]
                view[places] = part.reshape(len(rows), *view.shape[2:])
                first += size

    def _group_and_lane(
        self, start: int, stop: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the groups of 16 places that contain some positions, and their lanes."""
        places = [np.arange(*range_) for range_ in self.stored_ranges(start, stop)]
        return np.divmod(np.concatenate([*places, np.arange(0)]), GROUP_POSITIONS)

    def _parts(
        self, views: list[npt.NDArray[np.uint8]], start: int, stop: int
    ) -> list[npt.NDArray[np.uint8]]:
        """Return copies [stop - start, K, bytes] of some positions of views."""
        places = self._group_and_lane(start, stop)
        return [
            view[places].reshape(stop - start, self.heads, math.prod(view.shape[3:]))
            for view in views
        ]

    def _key_views(self) -> list[npt.NDArray[np.uint8]]:
        """Return views of the keys' bytes [C / 16, 16, K, ...]."""
        K = self.heads
        G = self.capacity // GROUP_POSITIONS
        if not isinstance(self.dtype, BlockDType):
            count = self.head_dim * self.dtype.itemsize // 4
            keys = self.keys.bits().view(np.uint8)
            words = keys.reshape(K, G, count, GROUP_POSITIONS, 4)
            return [words.transpose(1, 3, 0, 2, 4)]
        codes, scales = self._block_views(self.keys)
        by_position = codes.reshape(K, G, self.head_dim, GROUP_POSITIONS)
        return [by_position.transpose(1, 3, 0, 2), scales]

    def _value_views(self) -> list[npt.NDArray[np.uint8]]:
        """Return views of the values' bytes [C / 16, 16, K, ...]."""
        K = self.heads
        G = self.capacity // GROUP_POSITIONS
        if not isinstance(self.dtype, BlockDType):
            nbytes = self.head_dim * self.dtype.itemsize
            values = self.values.bits().view(np.uint8)
            rows = values.reshape(K, G, GROUP_POSITIONS, nbytes)
            return [rows.transpose(1, 2, 0, 3)]
        codes, scales = self._block_views(self.values)
        by_position = codes.reshape(K, G, GROUP_POSITIONS, self.head_dim)
        return [by_position.transpose(1, 2, 0, 3), scales]

    def _block_views(self, x: Tensor) -> tuple[npt.NDArray[np.uint8], ...]:
        """Return a view of all codes [K, C / 16, 16 * h], and one of all scales.

        The view of the scales has the shape [C / 16, 16, K, h / 32, bytes per scale].
        """
        groups = x.bits()
        size = GROUP_POSITIONS * self.head_dim
        blocks = self.head_dim // CACHE_Q8_0.block_size
        nbytes = CACHE_Q8_0.scales.itemsize
        shape = (*groups.shape[:2], blocks, GROUP_POSITIONS, nbytes)
        scales = groups[..., size:].reshape(shape)
        return groups[..., :size], scales.transpose(1, 3, 0, 2, 4)

    def rows(self, start: int, stop: int) -> tuple[npt.NDArray[Any], ...]:
        """Return copies of the keys and values of positions `start <= s < stop`.

        They are arrays [stop - start, K, h] of the dtype's bits, or the exact elements in
        float32 if the dtype is q8_0.
        """
        arrays = []
        for views in (self._key_views(), self._value_views()):
            parts = self._parts(views, start, stop)
            if isinstance(self.dtype, BlockDType):
                codes = parts[0].view(np.int8)
                scales = parts[1].view(np.float16).astype(np.float32)
                arrays.append(codes * scales.repeat(self.dtype.block_size, -1))
            else:
                arrays.append(parts[0].view(self.dtype.bits_dtype))
        return tuple(arrays)


class Spans(_ReadOnly):
    """The cache positions of new tokens from several sequences that share one cache.

    The sequences' tokens are concatenated. Ops that accept the first position of a single
    sequence also accept a `Spans` object.

    Args:
        spans: For each sequence, the position of its first new token, the number of new
            tokens, and a list of its blocks. Positions 256 * b to 256 * b + 255 of the
            sequence are stored from cache position 256 * blocks[b] on.

    Attributes:
        spans: The argument, as tuples of Python integers.
        parts: For each sequence, the index of its first token in the concatenation, the
            number of tokens, the position of the first token, and the number of positions
            in its blocks.
        tokens: The total number of new tokens.
        capacity: The number of positions that the cache must have.

    All attributes are read-only.

    Raises:
        ShapeError: If a number is negative or not an integer, a sequence has no new
            tokens or too few blocks, or a block index is too large for 64-bit positions.
    """

    __slots__ = ("_kernel_parts", "capacity", "parts", "spans", "tokens")

    spans: tuple[tuple[int, int, tuple[int, ...]], ...]
    parts: tuple[tuple[int, int, int, int], ...]
    tokens: int
    capacity: int
    # The entries of `parts`, each followed by the sequence's blocks as a C array.
    _kernel_parts: tuple[tuple[int, int, int, int, Any], ...]

    def __init__(self, spans: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        checked = []
        parts = []
        row = 0
        last = -1
        for start_pos, count, blocks in _checked_spans(spans):
            end = BLOCK_POSITIONS * len(blocks)
            if min(start_pos, *blocks, 0) < 0 or count < 1 or start_pos + count > end:
                raise ShapeError(
                    "[Spans] start_pos and blocks must be >= 0, tokens >= 1, and their "
                    f"end at most the positions of the blocks: {start_pos} + {count} > "
                    f"{end}"
                )
            last = max(last, *blocks)
            if last >= _MOST_BLOCKS:
                raise ShapeError(f"[Spans] blocks must be < {_MOST_BLOCKS}: {last}")
            checked.append((start_pos, count, blocks))
            parts.append((row, count, start_pos, end))
            row += count
        blocks_in_c = [ffi.new("ptrdiff_t[]", blocks) for _, _, blocks in checked]
        pairs = zip(parts, blocks_in_c, strict=True)
        self._set(
            spans=tuple(checked),
            parts=tuple(parts),
            tokens=row,
            capacity=BLOCK_POSITIONS * (last + 1),
            _kernel_parts=tuple((*part, blocks) for part, blocks in pairs),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Spans, (self.spans,)


# Cache positions of new tokens: the position of the first one for a single sequence, or a
# `Spans` object for several sequences.
Positions: TypeAlias = int | Spans


def _checked_spans(spans: Iterable[Any]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return spans as tuples of Python integers, or raise ShapeError."""
    checked = []
    try:
        for start_pos, count, blocks in spans:
            numbers = checked_ints("Spans", "numbers", (start_pos, count, *blocks))
            checked.append((numbers[0], numbers[1], numbers[2:]))
    except (TypeError, ValueError):
        text = "spans must be a sequence of (start_pos, tokens, blocks)"
        raise ShapeError(f"[Spans] {text}: {ascii(spans)[:80]}") from None
    return checked


def _cache_dtype(op: str, dtype: CacheDType | str) -> CacheDType:
    """Return the dtype of a cache, or raise DTypeError."""
    if dtype is CACHE_Q8_0 or dtype == CACHE_Q8_0.name:
        return CACHE_Q8_0
    plain = dtype_named(op, dtype)
    if plain is not bfloat16 and plain is not float32:
        raise DTypeError(f"[{op}] dtype must be one of bfloat16, float32, q8_0: {plain}")
    return plain


def _round_up(positions: int) -> int:
    return -(-positions // GROUP_POSITIONS) * GROUP_POSITIONS


def _allocate_aligned(shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
    """Allocate a tensor that is aligned to a cache line."""
    nbytes = math.prod(shape) * dtype.itemsize + _LINE_BYTES
    storage = Tensor.empty((nbytes,), uint8)
    offset = -storage.data_pointer % _LINE_BYTES
    strides = packed(shape, dtype.itemsize)[0]
    return Tensor(storage.storage, shape, strides, dtype, name, offset).contiguous()


def _unpickle_cache(sizes: tuple[Any, ...], keys: Any, values: Any) -> KeyValueCache:
    """Rebuild a pickled cache from the values of `KeyValueCache.__reduce__`."""
    cache = KeyValueCache(*sizes)
    cache.keys.bits()[...] = keys
    cache.values.bits()[...] = values
    return cache
