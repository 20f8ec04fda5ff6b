"""The keys and values of one layer, laid out in the order in which attention reads them."""

import math

from .dtype import DType, bfloat16, float32
from .errors import DTypeError, ShapeError
from .layout import checked_ints, packed
from .storage import Storage
from .tensor import Tensor

# Positions whose keys are adjacent, one in each lane of a sum.
GROUP_POSITIONS = 16
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
        heads: K, key/value heads, at least 1.
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
        self.positions, self.heads, self.head_dim = _checked(positions, heads, head_dim, dtype)
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


def _round_up(positions: int) -> int:
    return -(-positions // GROUP_POSITIONS) * GROUP_POSITIONS


def _checked(positions: int, heads: int, head_dim: int, dtype: DType) -> tuple[int, ...]:
    sizes = checked_ints("KeyValueCache", "sizes", (positions, heads, head_dim))
    if min(sizes) < 1:
        raise ShapeError(f"[KeyValueCache] positions, heads and head_dim must be >= 1: {sizes}")
    if head_dim % 2:
        raise ShapeError(f"[KeyValueCache] head_dim must be even: {head_dim}")
    if dtype is not bfloat16 and dtype is not float32:
        raise DTypeError(f"[KeyValueCache] dtype must be one of bfloat16, float32: {dtype}")
    return sizes


def _aligned(shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
    """Allocate a tensor that begins at a cache line."""
    storage = Storage(math.prod(shape) * dtype.itemsize + _LINE_BYTES)
    offset, strides = -storage.address % _LINE_BYTES, packed(shape, dtype.itemsize)[0]
    return Tensor(storage, shape, strides, dtype, name, offset).contiguous()
