"""The keys and values of one layer, laid out in the order in which attention reads them."""

import math
from collections.abc import Iterable, Sequence

from .dtype import DType, bfloat16, float32, uint8
from .errors import DTypeError, ShapeError
from .kernels import ffi, lib
from .layout import checked_ints, packed
from .tensor import Tensor

# Positions whose keys are adjacent, one in each lane of a sum.
GROUP_POSITIONS = 16
# Positions of a block, which attention takes together: several sequences share a cache by blocks.
BLOCK_POSITIONS: int = lib.ATTENTION_BLOCK
_WORD_BYTES = 4
_LINE_BYTES = 64


class KeyValueCache:
    """The keys and values of up to `positions` positions of a sequence, for the heads of a layer.

    Values are stored head by head: [K, C, h], where C is the number of positions rounded up to
    groups of 16. Keys are interleaved, so that 16 positions are one vector: in words of 4 bytes
    (two neighbouring bfloat16, or one float32) they are [K, C / 16, words, 16].

    It is written by `ml.write_cache` and read by `ml.attention`, or by `ml.read_cache` as plain
    tensors. It does not know which positions have been written; its memory is not filled, so that
    the system provides pages only when they are used.

    Args:
        positions: How many it is to hold, at least 1.
        heads: K, key/value heads, at least 0.
        head_dim: h, even and at least 2.
        dtype: bfloat16 or float32.

    Attributes:
        keys: A tensor [K, C / 16, words, 16, elements of a word].
        values: A tensor [K, C, h].

    Raises:
        ShapeError: A size that is not an integer, or out of its range.
        DTypeError: Another dtype.
        TensorMemoryError: The system refuses the allocation.
    """

    __slots__ = ("capacity", "dtype", "head_dim", "heads", "keys", "positions", "values")

    def __init__(self, positions: int, heads: int, head_dim: int, dtype: DType) -> None:
        sizes = checked_ints("KeyValueCache", "sizes", (positions, heads, head_dim))
        if min(positions, heads + 1, head_dim) < 1:
            text = f"positions and head_dim must be >= 1 and heads >= 0: {sizes}"
            raise ShapeError(f"[KeyValueCache] {text}")
        if head_dim % 2:
            raise ShapeError(f"[KeyValueCache] head_dim must be even: {head_dim}")
        if dtype is not bfloat16 and dtype is not float32:
            raise DTypeError(f"[KeyValueCache] dtype must be one of bfloat16, float32: {dtype}")
        self.positions, self.heads, self.head_dim = sizes
        self.dtype = dtype
        self.capacity = _round_up(self.positions)
        in_word = _WORD_BYTES // dtype.itemsize
        groups, words = self.capacity // GROUP_POSITIONS, self.head_dim // in_word
        of_keys = (self.heads, groups, words, GROUP_POSITIONS, in_word)
        self.keys = _aligned(of_keys, dtype, "cache_k")
        self.values = _aligned((self.heads, self.capacity, self.head_dim), dtype, "cache_v")

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute once: the sizes stay those of the memory."""
        if hasattr(self, name):
            raise AttributeError(f"[KeyValueCache] {name} is read-only")
        super().__setattr__(name, value)

    @staticmethod
    def bytes_for(positions: int, heads: int, head_dim: int, dtype: DType) -> int:
        """Return the bytes of keys and values: 2 * C * K * h * itemsize; allocates nothing."""
        return 2 * _round_up(positions) * heads * head_dim * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block of 256 positions, of those that the cache holds, over another one.

        Raises:
            ShapeError: A block that the cache does not have.
        """
        blocks = self.positions // BLOCK_POSITIONS
        for block in checked_ints("copy_block", "source and target", (source, target)):
            if not 0 <= block < blocks:
                raise ShapeError(f"[copy_block] blocks must be in [0, {blocks}): {block}")
        for x, size in (
            (self.keys, BLOCK_POSITIONS // GROUP_POSITIONS), (self.values, BLOCK_POSITIONS)
        ):  # fmt: skip
            bits, to, start = x.bits(), target * size, source * size
            bits[:, to : to + size] = bits[:, start : start + size]


class Spans:
    """The new tokens of several sequences, one after the other, whose blocks lie in one cache.

    Where an op takes the position of the first token of one sequence, it takes this as well.

    Args:
        spans: For each sequence, the position of its first new token, how many new tokens it has,
            and the places of its blocks: block b holds positions 256 b to 256 b + 255, which are
            256 * blocks[b] and the following ones of the cache.

    Attributes:
        spans: What it was made of.
        parts: For each sequence, the place of its first token among all tokens, their number, the
            position of the first, the positions that its blocks hold, and the blocks, for C.
        tokens: The new tokens of all sequences.
        capacity: The positions that a cache must have.

    Raises:
        ShapeError: Numbers that are not integers or are negative, no token, or too few blocks.
    """

    __slots__ = ("capacity", "parts", "spans", "tokens")

    def __init__(self, spans: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        parts, row, last, self.spans = [], 0, -1, tuple(spans)
        for start_pos, count, blocks in self.spans:
            numbers = checked_ints("Spans", "numbers", (start_pos, count, *blocks))
            end = BLOCK_POSITIONS * (len(numbers) - 2)
            if min(numbers) < 0 or count < 1 or start_pos + count > end:
                raise ShapeError(
                    "[Spans] start_pos and blocks must be >= 0, tokens >= 1, and their end at most "
                    f"the positions of the blocks: {start_pos} + {count} > {end}"
                )
            parts.append((row, count, start_pos, end, ffi.new("ptrdiff_t[]", numbers[2:])))
            row, last = row + count, max(last, *numbers[2:])
        self.parts, self.tokens = tuple(parts), row
        self.capacity = BLOCK_POSITIONS * (last + 1)


def _round_up(positions: int) -> int:
    return -(-positions // GROUP_POSITIONS) * GROUP_POSITIONS


def _aligned(shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
    """Allocate a tensor that begins at a cache line."""
    nbytes = math.prod(shape) * dtype.itemsize + _LINE_BYTES
    room = Tensor.empty((nbytes,), uint8)
    offset, strides = -room.data_pointer % _LINE_BYTES, packed(shape, dtype.itemsize)[0]
    return Tensor(room.storage, shape, strides, dtype, name, offset).contiguous()
