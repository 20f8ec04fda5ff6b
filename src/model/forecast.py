"""The memory that a model and a context need, computed before any of it is allocated."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from .. import memory, ml
from ..memory import readable_bytes
from .args import ModelArgs
from .errors import NotEnoughMemoryError

PREFILL_CHUNK = 512  # tokens that run together while a prompt is read
_PYTORCH_BYTES = 512 << 20  # memory of a process with PyTorch and transformers


def kv_cache_bytes(args: ModelArgs, sequence_length: int) -> int:
    """Return the bytes of a KV cache: 2 * L * C * K * h * itemsize.

    C is the length, rounded up to a multiple of 16.
    """
    layer = ml.KeyValueCache.bytes_for(
        sequence_length, args.n_kv_heads, args.head_dim, args.dtype
    )
    return args.n_layers * layer


@dataclass(frozen=True)
class MemoryForecast:
    """The memory that a model and a context will need.

    `check` runs before two allocations. Before a model is loaded, the copied weights and
    the planned context are checked together, so that a context without room is rejected
    before minutes of quantizing. Before a context is allocated, it is checked alone, with
    the memory that is free then and with the dtype of the loaded weights, which the
    configuration only suggests.

    Attributes:
        args: The sizes of the model; sizes that only the tensors show are estimated.
        positions: The positions of the cache.
        mapped: Bytes of weight files that are used in place.
        copied: Bytes of weights that are allocated: merged from parts, or dequantized or
            quantized.
        copied_as: The copied weights, in words.
        free: Bytes that can be allocated, or None if the system does not report them.
    """

    args: ModelArgs
    positions: int
    mapped: int = 0
    copied: int = 0
    copied_as: str = ""
    free: int | None = None

    @property
    def parts(self) -> dict[str, int]:
        """Return the bytes that must be allocated, by their description.

        The intermediate results are an estimate for a chunk of the prompt: the stream,
        its norm and the addend; gate, up and hidden, also packed. Making the rotary
        table, which precedes them, needs less.
        """
        args = self.args
        C = self.positions
        rows = min(C, PREFILL_CHUNK)
        cache = (
            f"keys and values (2 * {args.n_layers} layers * {C} positions * "
            f"{args.n_kv_heads} heads * {args.head_dim} * {args.dtype.itemsize} bytes)"
        )
        copied = {self.copied_as: self.copied} if self.copied else {}
        return copied | {
            cache: kv_cache_bytes(args, C),
            "rotary frequencies": C * (args.head_dim // 2) * ml.complex64.itemsize,
            "intermediate results": rows
            * ml.float32.itemsize
            * (4 * args.dim + 3 * args.ffn_dim),
        }

    @property
    def needed(self) -> int:
        """Return the bytes that must be allocated."""
        return sum(self.parts.values())

    def check(self) -> None:
        """Check that the memory can be allocated.

        Raises:
            NotEnoughMemoryError: More memory is needed than is free; the message contains
                the arithmetic and the longest context that fits.
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
        """Return a warning about weights that do not all stay in memory, or None."""
        if self.free is None or self.mapped + self.needed <= self.free:
            return None
        return (
            f"memory: {readable_bytes(self.mapped)} of mapped weights + "
            f"{readable_bytes(self.needed)} of other data is more than the "
            f"{readable_bytes(self.free)} available; the weights that do not stay in "
            "memory are read from the disk again for each token"
        )


def check_float32_copy_fits(parameter_count: int) -> None:
    """Raise NotEnoughMemoryError unless a float32 copy of all weights and PyTorch fit."""
    arithmetic = (
        f"a float32 copy in transformers ({parameter_count} weights * 4 bytes "
        f"+ {readable_bytes(_PYTORCH_BYTES)} for PyTorch)"
    )
    shortage = memory.memory_shortage(parameter_count * 4 + _PYTORCH_BYTES, arithmetic)
    if shortage is not None:
        raise NotEnoughMemoryError(shortage)
