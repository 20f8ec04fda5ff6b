"""What a model remembers of a sequence: the keys and values of all its positions."""

from .. import ml
from ..ml.memory import memory_shortage
from ..trace import is_on, mark
from .args import ModelArgs
from .errors import ModelError, NotEnoughMemoryError, PositionError
from .rope import rotary_frequencies

ATTENTIONS = ("fused", "eager")
# Steps of at most so many tokens are repeated as recorded: of more, the Python does not show.
REPLAYED_TOKENS = 8
_COMPLEX_BYTES = 8


def kv_cache_bytes(args: ModelArgs, sequence_length: int) -> int:
    """Return the bytes of a KV cache: 2 * L * C * K * h * itemsize, C the length in 16s."""
    layer = ml.KeyValueCache.bytes_for(sequence_length, args.n_kv_heads, args.head_dim, args.dtype)
    return args.n_layers * layer


def check_context_fits(args: ModelArgs, sequence_length: int) -> None:
    """Refuse a context that the model or the memory cannot hold; allocate nothing.

    Raises:
        ModelError: The length is no whole number from 1 to the model's longest context.
        NotEnoughMemoryError: The KV cache needs more memory than is available.
    """
    if isinstance(sequence_length, bool) or not isinstance(sequence_length, int):
        kind = type(sequence_length).__name__
        raise ModelError(f"[context] sequence_length must be a whole number: got {kind}")
    if not 1 <= sequence_length <= args.max_context_length:
        raise ModelError(
            "[context] sequence_length must be from 1 to the model's longest context "
            f"{args.max_context_length}: got {sequence_length}"
        )
    table = sequence_length * (args.head_dim // 2) * _COMPLEX_BYTES
    shortage = memory_shortage(
        kv_cache_bytes(args, sequence_length) + table,
        f"a KV cache of 2 * {args.n_layers} layers * {sequence_length} positions * "
        f"{args.n_kv_heads} heads * {args.head_dim} * {args.dtype.itemsize} bytes "
        f"and {table} bytes of rotary frequencies",
    )
    if shortage is not None:
        raise NotEnoughMemoryError(shortage)


class InferenceContext:
    """The KV cache of one sequence and the rotary frequencies of its positions.

    Attributes:
        args: The sizes of the model that it was made for.
        sequence_length: The most positions it can hold.
        attention: "fused" for one op per layer, or "eager" for every stage as an op of its own.
        length: The positions that are filled, from 0 on.
        caches: For each layer, the rotated keys and the values in the activations' dtype.
        frequencies: complex64 [sequence_length, h/2].
        replays: For each small number of tokens from 1 on, its recorded kernel calls.

    Raises:
        ModelError: The length is out of range, or there is no such attention.
        NotEnoughMemoryError: The KV cache does not fit.
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
        self.replays = [ml.Replay() for _ in range(REPLAYED_TOKENS)]
        sizes = (sequence_length, args.n_kv_heads, args.head_dim)
        try:
            self.caches = [ml.KeyValueCache(*sizes, args.dtype) for _ in range(args.n_layers)]
            self.frequencies = rotary_frequencies(args, sequence_length)
        except (MemoryError, ml.TensorError) as error:
            raise NotEnoughMemoryError(
                f"memory: expected {kv_cache_bytes(args, sequence_length)} bytes for the KV "
                "cache, got a refusal from the system"
            ) from error

    @property
    def nbytes(self) -> int:
        """Return the bytes of the KV cache."""
        return kv_cache_bytes(self.args, self.sequence_length)

    @property
    def is_eager(self) -> bool:
        """Return whether every stage of attention is to be an op: if asked for, or traced."""
        return self.attention == "eager" or is_on()

    def replays_steps_of(self, count: int) -> bool:
        """Return whether the layers of a step of so many tokens run as recorded kernel calls."""
        return count <= len(self.replays) and not self.is_eager

    def begin(self, start_pos: int, count: int) -> None:
        """Open the positions from start_pos on for writing; those below it stay.

        Until `length` is set again after the last layer, only the positions below start_pos
        count as filled: an interrupted step leaves no half-written position behind.

        Raises:
            PositionError: There would be a gap before start_pos, or no room for the tokens.
        """
        if isinstance(start_pos, bool) or not isinstance(start_pos, int):
            kind = type(start_pos).__name__
            raise PositionError(f"[forward] start_pos must be a whole number: got {kind}")
        if not 0 <= start_pos <= self.length:
            raise PositionError(
                "[forward] start_pos must be from 0 to the number of cached positions "
                f"{self.length}: got {start_pos}"
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
