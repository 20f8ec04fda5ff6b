"""What a model remembers of a sequence: the keys and values of all its positions."""

from .. import memory, ml
from ..trace import is_on
from .args import ModelArgs
from .errors import ModelError, NotEnoughMemoryError, PositionError
from .forecast import MemoryForecast, kv_cache_bytes
from .rope import rotary_frequencies

ATTENTIONS = ("fused", "eager")
_READ_ONLY = frozenset(("args", "caches", "frequencies", "sequence_length"))


class InferenceContext:
    """The KV cache of one sequence and the rotary frequencies of its positions.

    Attributes:
        args: The sizes of the model that it was made for.
        sequence_length: The most positions it can hold.
        attention: "fused" for one op per layer, or "eager" for one op per stage.
        is_eager: Whether the newest pass runs every stage of attention as an op: because
            `attention` says so, or because a trace is on.
        length: The positions that are filled, from 0 on; at most sequence_length. This and
            `attention` are the only attributes that can be set.
        caches: For each layer, the rotated keys and the values in the activations' dtype.
        frequencies: complex64 [sequence_length, h/2].

    Raises:
        ModelError: The length is out of range, or the attention is unknown.
        NotEnoughMemoryError: The context does not fit.
    """

    def __init__(self, args: ModelArgs, sequence_length: int, attention: str = "fused") -> None:
        if attention not in ATTENTIONS:
            raise ModelError(
                f"[context] attention must be one of {', '.join(ATTENTIONS)}: "
                f"got {ascii(attention)[:80]}"
            )
        longest = args.max_context_length
        if type(sequence_length) is not int or not 1 <= sequence_length <= longest:
            raise ModelError(
                "[context] sequence_length must be a whole number from 1 to the model's longest "
                f"context {longest}: got {ascii(sequence_length)[:80]}"
            )
        MemoryForecast(args, sequence_length, free=memory.available_memory()).check()
        self.args = args
        self.sequence_length = sequence_length
        self.attention = attention
        self.is_eager = attention == "eager"
        self.length = 0
        sizes = (sequence_length, args.n_kv_heads, args.head_dim)
        try:
            self.caches = tuple(ml.KeyValueCache(*sizes, args.dtype) for _ in range(args.n_layers))
            self.frequencies = rotary_frequencies(args, sequence_length)
        except (MemoryError, ml.TensorError) as error:
            raise NotEnoughMemoryError(
                f"memory: expected {kv_cache_bytes(args, sequence_length)} bytes for the KV "
                "cache, got a refusal from the system"
            ) from error

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, unless the kernels would then read or write outside of the cache.

        Raises:
            AttributeError: It belongs to the memory of the cache, and is read-only.
            PositionError: A length that is not a whole number from 0 to sequence_length.
        """
        if name in _READ_ONLY and hasattr(self, name):
            raise AttributeError(f"[InferenceContext] {name} is read-only")
        if name == "length" and (type(value) is not int or not 0 <= value <= self.sequence_length):
            raise PositionError(
                "[InferenceContext] length must be a whole number from 0 to sequence_length "
                f"{self.sequence_length}: got {ascii(value)[:80]}"
            )
        super().__setattr__(name, value)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the KV cache."""
        return kv_cache_bytes(self.args, self.sequence_length)

    def begin(self, start_pos: int, count: int) -> None:
        """Begin a pass: open the positions from start_pos on for writing, and choose the attention.

        Those below start_pos stay. Until `length` is set again after the last layer, only they
        count as filled: an interrupted step leaves no half-written position behind.

        Raises:
            PositionError: A gap would be left before start_pos, or the tokens do not fit.
        """
        if type(start_pos) is not int or not 0 <= start_pos <= self.length:
            raise PositionError(
                "[forward] start_pos must be a whole number from 0 to the number of cached "
                f"positions {self.length}: got {ascii(start_pos)[:80]}"
            )
        if start_pos + count > self.sequence_length:
            raise PositionError(
                "[forward] start_pos + T must be at most sequence_length: "
                f"{start_pos} + {count} > {self.sequence_length}"
            )
        self.length = start_pos
        self.is_eager = self.attention == "eager" or is_on()

    def clear(self) -> None:
        """Forget all positions."""
        self.length = 0
