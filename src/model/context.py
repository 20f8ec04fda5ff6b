"""What a model remembers of a sequence: the keys and values of all its positions."""

from .. import ml
from ..trace import is_on, mark
from .args import ModelArgs
from .errors import ModelError, NotEnoughMemoryError, PositionError
from .forecast import check_context_fits, kv_cache_bytes
from .rope import rotary_frequencies

ATTENTIONS = ("fused", "eager")
_READ_ONLY = frozenset(("args", "caches", "frequencies", "sequence_length"))


class InferenceContext:
    """The KV cache of one sequence and the rotary frequencies of its positions.

    Attributes:
        args: The sizes of the model that it was made for.
        sequence_length: The most positions it can hold.
        attention: "fused" for one op per layer, or "eager" for every stage as a separate op.
        length: The positions that are filled, from 0 on; at most sequence_length. This and
            `attention` are the only attributes that can be set.
        caches: For each layer, the rotated keys and the values in the activations' dtype.
        frequencies: complex64 [sequence_length, h/2].

    Raises:
        ModelError: The length is out of range, or there is no such attention.
        NotEnoughMemoryError: The context does not fit.
    """

    def __init__(self, args: ModelArgs, sequence_length: int, attention: str = "fused") -> None:
        if attention not in ATTENTIONS:
            raise ModelError(
                f"[context] attention must be one of {', '.join(ATTENTIONS)}: "
                f"got {ascii(attention)[:80]}"
            )
        check_context_fits(args, sequence_length)
        self.args = args
        self.sequence_length = sequence_length
        self.attention = attention
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

    @property
    def is_eager(self) -> bool:
        """Return whether every stage of attention is to be an op: if asked for, or traced."""
        return self.attention == "eager" or is_on()

    def begin(self, start_pos: int, count: int) -> None:
        """Open the positions from start_pos on for writing; those below it stay.

        Until `length` is set again after the last layer, only the positions below start_pos
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

    def update(self, layer: int, start_pos: int, xk: ml.Tensor, xv: ml.Tensor) -> ml.KeyValueCache:
        """Write the keys and values of new positions.

        Args:
            layer: Index of the layer.
            start_pos: Position of the first new token.
            xk: Rotated keys [T, K, h].
            xv: Values [T, K, h].

        Returns:
            The layer's cache, which holds all positions up to them.
        """
        mark(11)  # KV cache update
        cache = self.caches[layer]
        ml.write_cache(cache, start_pos, xk, xv)
        return cache

    def clear(self) -> None:
        """Forget all positions."""
        self.length = 0
