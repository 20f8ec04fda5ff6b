"""What memory a model and a context need, computed before a weight is mapped or a cache
made.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from .. import memory, ml
from ..memory import readable_bytes
from .args import ModelArgs
from .errors import NotEnoughMemoryError

PREFILL_CHUNK = 512  # tokens that run together while a prompt is read
_PYTORCH_BYTES = 512 << 20  # what a process with PyTorch and transformers takes by itself


def kv_cache_bytes(args: ModelArgs, sequence_length: int) -> int:
    """Return the bytes of a KV cache: 2 * L * C * K * h * itemsize,
    C the length in 16s.
    """
    layer = ml.KeyValueCache.bytes_for(
        sequence_length, args.n_kv_heads, args.head_dim, args.dtype
    )
    return args.n_layers * layer


@dataclass(frozen=True)
class MemoryForecast:
    """What a model and a context will take.

    `check` runs before two allocations. Before a model is loaded, the weights that will
    be copied and the planned context are checked together, so that a context for which
    they leave no room is refused before minutes of quantizing. Before a context is
    allocated, it is checked alone, with the memory that is free then, and with the dtype
    of the loaded weights, which the configuration only makes likely.

    Attributes:
        args: The sizes of the model; what only the tensors show is estimated.
        positions: Those of the cache.
        mapped: Bytes of weight files, which are used where they are.
        copied: Bytes of weights that are allocated: merged from parts, or dequantized or
            quantized now.
        copied_as: What is copied, in words.
        free: Bytes that can be allocated, or None where the system does not say.
    """

    args: ModelArgs
    positions: int
    mapped: int = 0
    copied: int = 0
    copied_as: str = ""
    free: int | None = None

    @property
    def parts(self) -> dict[str, int]:
        """Return the bytes that must be allocated, each with what they are.

        The intermediate results are an estimate, of a chunk of the prompt: the stream,
        its norm and what is added; gate, up and hidden, packed too. Making the rotary
        table before takes less.
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
        """Refuse what cannot be allocated.

        Raises:
            NotEnoughMemoryError: More is needed than is free; the text has the arithmetic
                and the longest context that fits.
        """
        if self.free is None or self.needed <= self.free:
            return
        lengths = range(1, self.positions)
        fitting = bisect_right(
            lengths, self.free, key=lambda n: replace(self, positions=n).needed
        )
        sums = " + ".join(
            f"{readable_bytes(n)} of {what}" for what, n in self.parts.items()
        )
        raise NotEnoughMemoryError(
            f"memory: expected at most {readable_bytes(self.free)} available, got "
            f"{readable_bytes(self.needed)} = {sums}"
            + (f"; a context of {fitting} would fit" if fitting else "")
        )

    @property
    def warning(self) -> str | None:
        """Return what makes a model slow that fits: weights that cannot all stay in
        memory.
        """
        if self.free is None or self.mapped + self.needed <= self.free:
            return None
        return (
            f"memory: {readable_bytes(self.mapped)} of mapped weights + "
            f"{readable_bytes(self.needed)} of other data is more than the "
            f"{readable_bytes(self.free)} available; the weights that do not stay in "
            "memory are read from the disk again for each token"
        )


def check_float32_copy_fits(parameter_count: int) -> None:
    """Raise NotEnoughMemoryError where a float32 copy of all weights, and PyTorch, do not
    fit.
    """
    arithmetic = (
        f"a float32 copy in transformers ({parameter_count} weights * 4 bytes "
        f"+ {readable_bytes(_PYTORCH_BYTES)} for PyTorch)"
    )
    shortage = memory.memory_shortage(parameter_count * 4 + _PYTORCH_BYTES, arithmetic)
    if shortage is not None:
        raise NotEnoughMemoryError(shortage)
