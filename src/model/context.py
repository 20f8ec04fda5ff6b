"""The inputs of a pass other than the weights: token ids, and cached keys and values."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import memory, ml
from ..choices import ATTENTIONS
from ..trace import is_spelled_out
from .args import ModelArgs
from .errors import ModelError, NotEnoughMemoryError, PositionError, TokenIdError
from .forecast import MemoryForecast, kv_cache_bytes, ring_blocks
from .rope import rotary_table

Tokens: TypeAlias = ml.Tensor | Sequence[int] | npt.NDArray[np.integer]


class CacheMemory:
    """The keys and values of all layers, in blocks of positions, and the rotary table.

    It does not record which sequence a block belongs to. A single sequence uses the
    blocks in order, so its keys and values are contiguous. Several sequences share the
    blocks of a pool.

    Args:
        args: The sizes and constants of the model.
        sequence_length: The maximum number of positions in a sequence.
        blocks: The number of blocks in a pool. By default, the memory has room for one
            sequence.

    Attributes:
        args, sequence_length: See Args.
        is_pool: Whether several sequences share the blocks.
        blocks: The number of blocks. The last block of a single sequence may be shorter.
        caches: For each layer, the rotated keys and the values in the dtype of the cache.
            In the memory of a single sequence, layers with a window have rings.
        rotations: Rotary table, complex64 [sequence_length, h/2].
        window: The largest window of a layer, or 1 without windows.
        first_kept: The first position that all caches contain. It is 0 without rings.
        copies: The (source, target) pairs of blocks copied since the last pass.

    Raises:
        ModelError: The length is out of range.
        NotEnoughMemoryError: The blocks do not fit into memory.
    """

    def __init__(
        self, args: ModelArgs, sequence_length: int, blocks: int | None = None
    ) -> None:
        self.caches, self.rotations = _allocate(args, sequence_length, blocks)
        self.args = args
        self.sequence_length = sequence_length
        self.is_pool = blocks is not None
        self.blocks = (
            -(-sequence_length // ml.BLOCK_POSITIONS) if blocks is None else blocks
        )
        self.first_kept = 0
        # A ring, if layers with a window have rings. All rings have the same sizes.
        self._ring = next((c for c in self.caches if c.ring_blocks is not None), None)
        self.window = max(window or 1 for window in args.windows)
        self.copies: list[tuple[int, int]] = []

    @property
    def nbytes(self) -> int:
        """The size of the keys and values in bytes."""
        return sum(cache.nbytes for cache in self.caches)

    @property
    def capacity(self) -> int:
        """The number of allocated positions in a layer without a ring, or in a ring."""
        return max(cache.capacity for cache in self.caches)

    @property
    def first_start(self) -> int:
        """The first position, other than 0, from which a pass can continue.

        The window of its token must not reach positions that rings no longer contain.
        """
        return self.first_kept + self.window - 1 if self.first_kept else 0

    def open(self, start_pos: int, end: int) -> None:
        """Record that a pass writes the positions from start_pos to end."""
        if self._ring is not None:
            before = self.first_kept if start_pos else 0
            self.first_kept = max(before, self._ring.first_kept(end))

    def copy_block(self, source: int, target: int) -> None:
        """Overwrite the keys and values of one block with a copy of another block's."""
        for cache in self.caches:
            cache.copy_block(source, target)
        self.copies.append((source, target))


class InferenceContext:
    """The sequence that a pass continues: its keys and values, and its length.

    Only `attention` and `length` can be set. If the sizes or caches could be replaced,
    the kernels might access memory out of bounds.

    Args:
        args: The sizes and constants of the model.
        sequence_length: The maximum number of positions.
        attention: "fused" for one op per layer, or "eager" for one op per stage. Both
            compute the same bits.
        memory: The memory of the keys and values. By default, a new one is allocated.

    Attributes:
        is_eager: Whether the latest pass runs each stage of attention as a separate op,
            because of `attention`, or because a trace or an intervention needs it.

    Raises:
        ModelError: The length is out of range, or the attention is unknown.
        NotEnoughMemoryError: The context does not fit into memory.
    """

    def __init__(
        self,
        args: ModelArgs,
        sequence_length: int,
        attention: str = "fused",
        memory: CacheMemory | None = None,
    ) -> None:
        self.attention = attention  # an unknown one is rejected before the allocation
        self._memory = CacheMemory(args, sequence_length) if memory is None else memory
        self._args = args
        self._sequence_length = sequence_length
        self._length = 0
        self._opened = 0  # the number of filled positions once the current pass has ended
        self.is_eager = attention == "eager"

    @property
    def args(self) -> ModelArgs:
        """The sizes of the model."""
        return self._args

    @property
    def sequence_length(self) -> int:
        """The maximum number of positions."""
        return self._sequence_length

    @property
    def memory(self) -> CacheMemory:
        """The memory of the keys and values."""
        return self._memory

    @property
    def caches(self) -> tuple[ml.KeyValueCache, ...]:
        """For each layer, the rotated keys and the values in the dtype of the cache."""
        return self._memory.caches

    @property
    def length(self) -> int:
        """The number of filled positions, at most sequence_length.

        Raises:
            PositionError: The new length is not an integer from 0 to sequence_length.
        """
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        if type(length) is not int or not 0 <= length <= self._sequence_length:
            raise PositionError(
                "[InferenceContext] length must be a whole number from 0 to "
                f"sequence_length {self._sequence_length}: got {ascii(length)[:80]}"
            )
        self._length = length

    @property
    def attention(self) -> str:
        """The implementation of attention: "fused" or "eager".

        Raises:
            ModelError: The new value is neither of them.
        """
        return self._attention

    @attention.setter
    def attention(self, attention: str) -> None:
        _check_attention(attention)
        self._attention = attention

    @property
    def rotations(self) -> ml.Tensor:
        """The rotary table for all positions, complex64 [sequence_length, h/2]."""
        return self.memory.rotations

    @property
    def nbytes(self) -> int:
        """The size of the KV cache in bytes."""
        return self.memory.nbytes

    def check_pass(self, start_pos: int, count: int) -> None:
        """Check the positions of a pass.

        Raises:
            PositionError: There is a gap before start_pos, the tokens do not fit, or
                layers with a window no longer contain the positions before start_pos.
        """
        if type(start_pos) is not int or not 0 <= start_pos <= self._length:
            raise PositionError(
                "[forward] start_pos must be a whole number from 0 to the number of "
                f"cached positions {self.length}: got {ascii(start_pos)[:80]}"
            )
        end = start_pos + count
        if end > self.sequence_length:
            sizes = f"{start_pos} + {count} > {self.sequence_length}"
            raise PositionError(
                f"[forward] start_pos + T must be at most sequence_length: {sizes}"
            )
        first = self._memory.first_start
        if 0 < start_pos < first:
            raise PositionError(
                "[forward] start_pos must be 0, or at least the first position from "
                f"which layers with a window can continue: {start_pos} < {first}"
            )

    def begin(self, start_pos: int, count: int) -> tuple[ml.Positions, ml.Tensor]:
        """Begin a pass: open the positions from start_pos on for writing.

        The positions before start_pos are kept. Until `end` is called after the last
        layer, only they count as filled, so an interrupted pass leaves no partially
        written positions.

        Returns:
            The positions of the new tokens in the caches, and their part of the rotary
            table, complex64 [T, h/2].

        Raises:
            PositionError: See `check_pass`.
        """
        self.check_pass(start_pos, count)
        end = start_pos + count
        self._memory.open(start_pos, end)
        self._length = start_pos
        self._opened = end
        self.is_eager = self.attention == "eager" or is_spelled_out()
        return start_pos, self.memory.rotations.slice(start_pos, end)

    def end(self) -> None:
        """End the pass that `begin` started: count its positions as filled."""
        self._length = self._opened
        self.memory.copies.clear()

    def last_rows(self, x: ml.Tensor) -> ml.Tensor:
        """Return the last row of x [T, D], for which logits are computed: [1, D]."""
        T = x.shape[0]
        return x.slice(T - 1, T)

    def clear(self) -> None:
        """Discard all positions."""
        self.length = 0


class BatchContext(InferenceContext):
    """A pass over the new tokens of several sequences that share one cache memory.

    Args:
        memory: The memory of the keys and values.
        spans: The positions of the new tokens of each sequence.
        wanted: For each sequence, the number of its last tokens to compute logits for.
    """

    def __init__(
        self, memory: CacheMemory, spans: ml.Spans, wanted: Sequence[int]
    ) -> None:
        super().__init__(memory.args, memory.sequence_length, memory=memory)
        self.spans = spans
        self.wanted = wanted
        positions: list[int] = []
        rows: list[int] = []
        for (row, count, start_pos, *_), most in zip(spans.parts, wanted, strict=True):
            positions += range(start_pos, start_pos + count)
            rows += range(row + count - most, row + count)
        self._positions = ml.Tensor.from_integers(positions)
        self._rows = ml.Tensor.from_integers(rows)

    def check_pass(self, start_pos: int, count: int) -> None:
        """Check the tokens. start_pos must be 0, because the spans contain the positions.

        Raises:
            PositionError: The number of tokens or the position differs from the spans.
        """
        if count != self.spans.tokens or start_pos != 0:
            text = f"{count} from {start_pos} != {self.spans.tokens} from 0"
            raise PositionError(
                f"[forward] tokens must be the tokens of the spans: {text}"
            )

    def begin(self, start_pos: int, count: int) -> tuple[ml.Positions, ml.Tensor]:
        """Begin the pass.

        Raises:
            PositionError: See `check_pass`.
        """
        self.check_pass(start_pos, count)
        return self.spans, ml.get_rows(self.memory.rotations, self._positions)

    def end(self) -> None:
        """End the pass. The caller records which tokens the blocks contain."""
        self.memory.copies.clear()

    def last_rows(self, x: ml.Tensor) -> ml.Tensor:
        """Return the rows of x [T, D] for which logits are computed."""
        return ml.get_rows(x, self._rows)


def _check_attention(attention: object) -> None:
    """Raise ModelError if the attention implementation is unknown."""
    if attention not in ATTENTIONS:
        names = ", ".join(ATTENTIONS)
        shown = ascii(attention)[:80]
        raise ModelError(f"[context] attention must be one of {names}: got {shown}")


def _allocate(
    args: ModelArgs, sequence_length: int, blocks: int | None = None
) -> tuple[tuple[ml.KeyValueCache, ...], ml.Tensor]:
    """Allocate a cache for each layer and build the rotary table for a sequence.

    Each cache has room for one sequence, or for `blocks` blocks shared by several.
    """
    longest = args.max_context_length
    if type(sequence_length) is not int or not 1 <= sequence_length <= longest:
        raise ModelError(
            "[context] sequence_length must be a whole number from 1 to the model's "
            f"longest context {longest}: got {ascii(sequence_length)[:80]}"
        )
    is_pool = blocks is not None
    positions = sequence_length if blocks is None else blocks * ml.BLOCK_POSITIONS
    free = memory.available_memory()
    MemoryForecast(args, positions, free=free, is_pool=is_pool).check()
    shape = (positions, args.n_kv_heads, args.head_dim)
    ring = None if is_pool else ring_blocks(args, sequence_length)
    try:
        caches = tuple(
            ml.KeyValueCache(*shape, args.cache_dtype, None if window is None else ring)
            for window in args.windows
        )
        return caches, rotary_table(args, sequence_length)
    except (MemoryError, ml.TensorError) as error:
        nbytes = kv_cache_bytes(args, positions, is_pool)
        text = (
            f"memory: expected {nbytes} bytes for the KV cache, got a refusal from the "
            "system"
        )
        raise NotEnoughMemoryError(text) from error


def token_tensor(tokens: Tokens, vocab_size: int) -> ml.Tensor:
    """Check token ids and return them as int32 [T].

    Raises:
        TokenIdError: The ids are empty, not one-dimensional, not integers, or outside
            the range 0 to vocab_size - 1.
    """
    ids = token_list("[forward] tokens", tokens)
    if not ids:
        raise TokenIdError("[forward] len(tokens) must be >= 1: got 0")
    if min(ids) < 0 or max(ids) >= vocab_size:
        at, bad = next((i, n) for i, n in enumerate(ids) if not 0 <= n < vocab_size)
        raise TokenIdError(
            f"[forward] tokens[{at}] must be from 0 to {vocab_size - 1}: got {bad}"
        )
    return ml.Tensor.from_integers(ids, name="tokens")


def token_list(label: str, tokens: Tokens) -> list[int]:
    """Return token ids as a list of Python integers, which may be empty.

    Args:
        label: The name of the argument in error messages.
        tokens: Any one-dimensional sequence of integers, except strings and bytes.

    Raises:
        TokenIdError: If `tokens` has another type.
    """
    if type(tokens) is list and {*map(type, tokens)} <= {int}:
        return tokens
    description = type(tokens).__name__
    if not isinstance(tokens, str | bytes | bytearray):
        try:
            ids = np.asarray(tokens)
        except (TypeError, ValueError, OverflowError, ml.TensorError):
            ids = np.asarray(None)
        if ids.ndim == 1 and (ids.dtype.kind in "iu" or ids.size == 0):
            return list(ids.tolist())
        if ids.ndim:
            description = f"{ids.dtype} {list(ids.shape)}"
    raise TokenIdError(f"{label} must be whole numbers of shape [T]: got {description}")


def wrong_weight(layer: Any, index: int, args: ModelArgs) -> str:
    """Return the name of a layer and its first weight with a wrong shape, if any."""
    for name, expected in args.tensor_shapes.items():
        path = name.removeprefix(f"layers.{index}.")
        if path == name or path.endswith(".bias") or ".experts." in path:
            continue
        path = path if "norm" in path else path.removesuffix(".weight")
        shape = attrgetter(path)(layer).shape
        if shape != expected:
            return f"layers.{index}.{path} must be {list(expected)}: {list(shape)}"
    return f"layers.{index}"
