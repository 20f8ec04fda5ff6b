"""Forecast the memory that a model and a context need before any is allocated."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace

from .. import memory, ml
from ..memory import readable_bytes
from .args import ModelArgs
from .errors import NotEnoughMemoryError

PREFILL_CHUNK = 512  # number of prompt tokens that are processed together
_PYTORCH_BYTES = 512 << 20  # memory used by a process with PyTorch and transformers


def ring_blocks(args: ModelArgs, sequence_length: int) -> int | None:
    """Return the number of blocks in the ring of a layer with a window.

    A chunk of a prompt is written before its first token reads its window, so the ring
    contains window + chunk - 1 positions, which may begin and end in the middle of a
    block. Return None if all positions of a sequence need no more blocks than a ring, or
    without windows.
    """
    windows = [window for window in args.windows if window is not None]
    if not windows:
        return None
    positions = max(windows) + PREFILL_CHUNK - 1
    blocks = -(-(positions - 1) // ml.BLOCK_POSITIONS) + 1
    return blocks if blocks * ml.BLOCK_POSITIONS < sequence_length else None


def layer_positions(args: ModelArgs, positions: int, is_pool: bool = False) -> list[int]:
    """Return the number of cached positions of each layer.

    Layers with a window contain fewer than `positions`, except in a pool of several
    sequences.
    """
    blocks = None if is_pool else ring_blocks(args, positions)
    if blocks is None:
        return [positions] * args.n_layers
    ring = blocks * ml.BLOCK_POSITIONS
    return [positions if window is None else ring for window in args.windows]


def kv_cache_bytes(args: ModelArgs, positions: int, is_pool: bool = False) -> int:
    """Return the size of a KV cache in bytes: 2 * C * K * h * itemsize for each layer.

    C is the number of positions of the layer, rounded up to a multiple of 16. In q8_0,
    the size of an element is 34 / 32 bytes. `is_pool` is whether several sequences share
    the cache.
    """
    shape = args.n_kv_heads, args.head_dim, args.cache_dtype
    return sum(
        ml.KeyValueCache.bytes_for(each, *shape)
        for each in layer_positions(args, positions, is_pool)
    )


def _element_bytes(args: ModelArgs) -> str:
    """Return the size of an element of the cache in bytes, as text."""
    dtype = args.cache_dtype
    if isinstance(dtype, ml.BlockDType):
        return f"{dtype.block_bytes}/{dtype.block_size}"
    return str(dtype.itemsize)


@dataclass(frozen=True)
class MemoryForecast:
    """The memory that a model and a context will need.

    `check` is called before two allocations. Before a model is loaded, it checks the
    copied weights and the planned context together, so that a context that does not fit
    is rejected before minutes of quantization. Before a context is allocated, it checks
    only the context, with the memory that is free at that time and the dtype of the
    loaded weights, which may differ from the dtype in the configuration.

    Attributes:
        args: The sizes and constants of the model. Sizes that only the tensors contain
            are estimated.
        positions: The number of positions in the cache.
        mapped: Bytes of the weight files that are used in place.
        copied: Bytes of the weights that are allocated because they are merged,
            dequantized or quantized.
        copied_as: A description of the copied weights.
        free: Bytes that can be allocated, or None if the system does not report them.
        is_pool: Whether several sequences share the cache.
    """

    args: ModelArgs
    positions: int
    mapped: int = 0
    copied: int = 0
    copied_as: str = ""
    free: int | None = None
    is_pool: bool = False

    @property
    def parts(self) -> dict[str, int]:
        """Return the sizes of all allocations in bytes, keyed by their descriptions.

        The intermediate results are an estimate for one chunk of the prompt: the residual
        stream, its norm and the term added to it, and gate, up and hidden, including
        packed copies. The rotary table is built earlier and needs less than this.
        """
        args = self.args
        feed_forwards = args.n_active_experts or 1
        C = self.positions
        rows = min(C, PREFILL_CHUNK)
        layers = Counter(layer_positions(args, C, self.is_pool))
        counts = [f"{n} layers * {each} positions" for each, n in layers.items()]
        count = counts[0] if len(counts) == 1 else f"({' + '.join(counts)})"
        cache = (
            f"keys and values (2 * {count} * "
            f"{args.n_kv_heads} heads * {args.head_dim} * {_element_bytes(args)} bytes)"
        )
        copied = {self.copied_as: self.copied} if self.copied else {}
        return copied | {
            cache: kv_cache_bytes(args, C, self.is_pool),
            "rotary table": C
            * len(args.rope_tables)
            * (args.head_dim // 2)
            * ml.complex64.itemsize,
            "intermediate results": rows
            * ml.float32.itemsize
            * (4 * args.dim + feed_forwards * 3 * args.ffn_dim),
        }

    @property
    def needed(self) -> int:
        """Return the total number of bytes to allocate."""
        return sum(self.parts.values())

    def check(self) -> None:
        """Check that the memory can be allocated.

        Raises:
            NotEnoughMemoryError: More memory is needed than is free. The message shows
                the calculation and the longest context that fits.
        """
        if self.free is None or self.needed <= self.free:
            return
        lengths = range(1, self.positions)
        fitting = bisect_right(
            lengths, self.free, key=lambda n: replace(self, positions=n).needed
        )
        sums = " + ".join(
            f"{readable_bytes(n)} of {part}" for part, n in self.parts.items()
        )
        raise NotEnoughMemoryError(
            f"memory: expected at most {readable_bytes(self.free)} available, got "
            f"{readable_bytes(self.needed)} = {sums}"
            + (f"; a context of {fitting} would fit" if fitting else "")
        )

    @property
    def warning(self) -> str | None:
        """Return a warning if some of the weights will not stay in memory, or None."""
        if self.free is None or self.mapped + self.needed <= self.free:
            return None
        used = "the weights"
        if self.args.n_experts:
            counts = f"{self.args.n_active_experts} of {self.args.n_experts}"
            used = f"the used weights ({counts} experts)"
        return (
            f"memory: {readable_bytes(self.mapped)} of mapped weights + "
            f"{readable_bytes(self.needed)} of other data is more than the "
            f"{readable_bytes(self.free)} available; {used} that do not stay in "
            "memory are read from the disk again for each token"
        )


def check_float32_copy_fits(parameter_count: int) -> None:
    """Raise NotEnoughMemoryError unless PyTorch and a float32 copy of the weights fit."""
    arithmetic = (
        f"a float32 copy in transformers ({parameter_count} weights * 4 bytes "
        f"+ {readable_bytes(_PYTORCH_BYTES)} for PyTorch)"
    )
    shortage = memory.memory_shortage(parameter_count * 4 + _PYTORCH_BYTES, arithmetic)
    if shortage is not None:
        raise NotEnoughMemoryError(shortage)
