"""The keys and values of one layer, in the order in which attention reads them."""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from .dtype import DType, bfloat16, dtype_named, float32, uint8
from .errors import DTypeError, ShapeError
from .kernels import ffi, lib
from .layout import checked_ints, packed
from .op import Operand
from .tensor import Tensor

# Positions whose keys are adjacent, one in each lane of a sum.
GROUP_POSITIONS: int = lib.LANES
# Positions of a block, which attention processes together. Several sequences share a
# cache by blocks.
BLOCK_POSITIONS: int = lib.ATTENTION_BLOCK
_WORD_BYTES = 4
_LINE_BYTES: int = lib.LINE
_MOST_BLOCKS = sys.maxsize // BLOCK_POSITIONS  # C can count the positions of so few


class _ReadOnly:
    """An object whose attributes never change, because the kernels do not check them."""

    __slots__ = ()

    def _set(self, **attributes: object) -> None:
        """Set attributes in the constructor, after every check."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        """Raise AttributeError."""
        raise AttributeError(f"[{type(self).__name__}] {name} is read-only")

    def __delattr__(self, name: str) -> None:
        """Raise AttributeError."""
        raise AttributeError(f"[{type(self).__name__}] {name} is read-only")


class KeyValueCache(_ReadOnly, Operand):
    """The keys and values of up to `positions` positions, for the heads of a layer.

    Values are stored head by head: [K, C, h], where C is the number of positions rounded
    up to groups of 16. Keys are interleaved, so that 16 positions are one vector: in
    words of 4 bytes (two neighbouring bfloat16, or one float32) they are [K, C / 16,
    words, 16].

    `ml.write_cache` writes it. `ml.attention` reads it, and `ml.read_cache` copies it to
    plain tensors. It does not record which positions have been written. Its memory is not
    initialized, so that the system provides pages only when they are used.

    Args:
        positions: The number of positions, at least 1.
        heads: K, key/value heads, at least 0.
        head_dim: h, even and at least 2.
        dtype: bfloat16 or float32.

    Attributes:
        keys: A tensor [K, C / 16, words, 16, elements of a word].
        values: A tensor [K, C, h].
        positions, heads, head_dim, dtype: The arguments.
        capacity: C.

    All attributes are read-only.

    Raises:
        ShapeError: A size is not an integer, or out of its range.
        DTypeError: The dtype is another one.
        TensorMemoryError: The system refuses the allocation.
    """

    __slots__ = ("capacity", "dtype", "head_dim", "heads", "keys", "positions", "values")

    keys: Tensor
    values: Tensor
    positions: int
    heads: int
    head_dim: int
    dtype: DType
    capacity: int

    def __init__(
        self, positions: int, heads: int, head_dim: int, dtype: DType | str
    ) -> None:
        sizes = checked_ints("KeyValueCache", "sizes", (positions, heads, head_dim))
        positions, heads, head_dim = sizes
        if positions < 1 or heads < 0 or head_dim < 1:
            text = f"positions and head_dim must be >= 1 and heads >= 0: {sizes}"
            raise ShapeError(f"[KeyValueCache] {text}")
        if head_dim % 2:
            raise ShapeError(f"[KeyValueCache] head_dim must be even: {head_dim}")
        dtype = dtype_named("KeyValueCache", dtype)
        if dtype is not bfloat16 and dtype is not float32:
            raise DTypeError(
                f"[KeyValueCache] dtype must be one of bfloat16, float32: {dtype}"
            )
        capacity = _round_up(positions)
        word_size = _WORD_BYTES // dtype.itemsize
        groups = capacity // GROUP_POSITIONS
        words = head_dim // word_size
        key_shape = (heads, groups, words, GROUP_POSITIONS, word_size)
        self._set(
            positions=positions,
            heads=heads,
            head_dim=head_dim,
            dtype=dtype,
            capacity=capacity,
            keys=_allocate_aligned(key_shape, dtype, "cache_k"),
            values=_allocate_aligned((heads, capacity, head_dim), dtype, "cache_v"),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = self.positions, self.heads, self.head_dim, self.dtype
        return _unpickle_cache, (
            sizes,
            np.array(self.keys.bits()),
            np.array(self.values.bits()),
        )

    def traced_sizes(self) -> dict[str, int]:
        """Return C, which a trace shows."""
        return {"C": self.capacity}

    @staticmethod
    def bytes_for(positions: int, heads: int, head_dim: int, dtype: DType | str) -> int:
        """Return the bytes of keys and values: 2 * C * K * h * itemsize."""
        itemsize = dtype_named("bytes_for", dtype).itemsize
        return 2 * _round_up(positions) * heads * head_dim * itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block of 256 positions of the cache over another block.

        Raises:
            ShapeError: The cache does not have one of the blocks.
        """
        blocks = self.positions // BLOCK_POSITIONS
        source, target = checked_ints("copy_block", "source and target", (source, target))
        for block in (source, target):
            if not 0 <= block < blocks:
                raise ShapeError(f"[copy_block] blocks must be in [0, {blocks}): {block}")
        for x, size in (
            (self.keys, BLOCK_POSITIONS // GROUP_POSITIONS),
            (self.values, BLOCK_POSITIONS),
        ):
            bits = x.bits()
            end = target * size
            start = source * size
            bits[:, end : end + size] = bits[:, start : start + size]


class Spans(_ReadOnly):
    """The new tokens of several sequences, one after the other, with blocks in one cache.

    An op that takes the position of the first token of one sequence also takes this
    object.

    Args:
        spans: For each sequence, the position of its first new token, the number of new
            tokens, and the places of its blocks: block b contains positions 256 b to 256
            b + 255, which are 256 * blocks[b] and the following positions of the cache.

    Attributes:
        spans: The argument, as tuples of Python integers.
        parts: For each sequence, the index of its first token among all tokens, the
            number of tokens, the position of the first token, and the number of positions
            of its blocks.
        tokens: The number of new tokens of all sequences.
        capacity: The positions that a cache must have.

    All attributes are read-only.

    Raises:
        ShapeError: A number is not an integer or is negative, there is no token, there
            are too few blocks, or 64 bits cannot count the positions of a block.
    """

    __slots__ = ("_kernel_parts", "capacity", "parts", "spans", "tokens")

    spans: tuple[tuple[int, int, tuple[int, ...]], ...]
    parts: tuple[tuple[int, int, int, int], ...]
    tokens: int
    capacity: int
    # The parts, each with its blocks as a C array.
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


# The places of new tokens in a cache: the position of the first token of one sequence, or
# the spans of several sequences.
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


def _round_up(positions: int) -> int:
    return -(-positions // GROUP_POSITIONS) * GROUP_POSITIONS


def _allocate_aligned(shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
    """Allocate a tensor that begins at a cache line."""
    nbytes = math.prod(shape) * dtype.itemsize + _LINE_BYTES
    storage = Tensor.empty((nbytes,), uint8)
    offset = -storage.data_pointer % _LINE_BYTES
    strides = packed(shape, dtype.itemsize)[0]
    return Tensor(storage.storage, shape, strides, dtype, name, offset).contiguous()


def _unpickle_cache(sizes: tuple[Any, ...], keys: Any, values: Any) -> KeyValueCache:
    """Return the cache that `KeyValueCache.__reduce__` describes."""
    cache = KeyValueCache(*sizes)
    cache.keys.bits()[...] = keys
    cache.values.bits()[...] = values
    return cache
