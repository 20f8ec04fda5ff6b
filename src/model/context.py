"""What a model remembers of a sequence: the keys and values of all its positions."""

from .. import ml
from ..trace import mark
from .args import ModelArgs
from .errors import ModelError, NotEnoughMemoryError, PositionError
from .memory import require_memory
from .rope import rotary_frequencies

_COMPLEX_BYTES = 8


def kv_cache_bytes(args: ModelArgs, sequence_length: int) -> int:
    """Returns the size of a KV cache: 2 * L * S * K * h * itemsize."""
    per_position = args.n_kv_heads * args.head_dim * args.dtype.itemsize
    return 2 * args.n_layers * sequence_length * per_position


def check_context_fits(args: ModelArgs, sequence_length: int) -> None:
    """Refuses a context that the model or the memory cannot hold; allocates nothing.

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
    require_memory(
        kv_cache_bytes(args, sequence_length) + table,
        f"a KV cache of 2 * {args.n_layers} layers * {sequence_length} positions * "
        f"{args.n_kv_heads} heads * {args.head_dim} * {args.dtype.itemsize} bytes "
        f"and {table} bytes of rotary frequencies",
    )


class InferenceContext:
    """The KV cache of one sequence and the rotary frequencies of its positions.

    Attributes:
        args: The sizes of the model that it was made for.
        sequence_length: The most positions it can hold.
        length: The positions that are filled, from 0 on.
        keys: For each layer, the rotated keys [sequence_length, K, h] in the activations' dtype.
        values: For each layer, the values [sequence_length, K, h].
        frequencies: complex64 [sequence_length, h/2].
    """

    def __init__(self, args: ModelArgs, sequence_length: int) -> None:
        check_context_fits(args, sequence_length)
        self.args = args
        self.sequence_length = sequence_length
        self.length = 0
        shape = (sequence_length, args.n_kv_heads, args.head_dim)
        layers = range(args.n_layers)
        try:
            # Not filled: the system gives pages as positions are written.
            self.keys = [ml.Tensor.empty(shape, args.dtype, "cache_k") for _ in layers]
            self.values = [ml.Tensor.empty(shape, args.dtype, "cache_v") for _ in layers]
            self.frequencies = rotary_frequencies(args, sequence_length)
        except (MemoryError, ml.TensorError) as error:
            raise NotEnoughMemoryError(
                f"memory: expected {kv_cache_bytes(args, sequence_length)} bytes for the KV "
                "cache, got a refusal from the system"
            ) from error

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the KV cache."""
        return kv_cache_bytes(self.args, self.sequence_length)

    def begin(self, start_pos: int, count: int) -> None:
        """Opens the positions from start_pos on for writing; those below it stay.

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

    def update(
        self, layer: int, start_pos: int, xk: ml.Tensor, xv: ml.Tensor
    ) -> tuple[ml.Tensor, ml.Tensor]:
        """Writes the keys and values of new positions and returns all up to them.

        Args:
            layer: Index of the layer.
            start_pos: Position of the first new token.
            xk: Rotated keys [T, K, h].
            xv: Values [T, K, h].

        Returns:
            Views of the cached keys and values, [S, K, h] each, with S = start_pos + T.
        """
        mark(11)  # KV cache update
        stop = start_pos + xk.shape[0]
        self.keys[layer].set_slice(start_pos, stop, xk)
        self.values[layer].set_slice(start_pos, stop, xv)
        return self.keys[layer].slice(0, stop), self.values[layer].slice(0, stop)

    def clear(self) -> None:
        """Forgets all positions."""
        self.length = 0
