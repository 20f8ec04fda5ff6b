"""The sizes of a model: read from `params.json`, checked before anything is allocated."""

from collections.abc import Mapping
from dataclasses import dataclass

from .. import ml
from .errors import ModelConfigError

# Larger than any published Llama; a hostile file must not make the loader count to 10^9.
_LARGEST = {
    "dim": 1 << 20,
    "n_layers": 4096,
    "n_heads": 1 << 16,
    "n_kv_heads": 1 << 16,
    "vocab_size": 1 << 24,
    "multiple_of": 1 << 24,
    "max_seq_len": 1 << 27,
}
# Beyond these a float32 would overflow or the value would no longer do what it is there for.
_RANGES = {
    "norm_eps": (1e-12, 1.0),
    "rope_theta": (1.0, 1e15),
    "ffn_dim_multiplier": (1e-6, 1e3),
    "rope_scaling_factor": (1.0, 1e6),
}
_DEFAULT_MULTIPLE_OF = 256
_DEFAULT_ROPE_THETA = 10000.0  # Llama 2, whose params.json does not name it
_SCALED_ROPE_FACTOR = 8.0
# (dim, n_layers) of the sizes whose RoPE is scaled by another factor than Llama 3.1's. Their
# params.json says only `use_scaled_rope`; the factor is in their Hugging Face config.json.
_KNOWN_SCALED_ROPE_FACTORS = {(2048, 16): 32.0, (3072, 28): 32.0}


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 stretches the slow rotary frequencies over a longer context.

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192


@dataclass(frozen=True)
class ModelArgs:
    """The sizes and constants of one model, in the words of `params.json`.

    `dtype` is that of the activations and of the KV cache: bfloat16 for bfloat16 weights, float32
    for float32 and float16 weights.
    """

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context_length: int
    dtype: ml.DType

    @property
    def group_size(self) -> int:
        """Returns G, the query heads that share one key/value head: H / K."""
        return self.n_heads // self.n_kv_heads


def model_args(
    params: Mapping[str, object],
    shapes: Mapping[str, tuple[int, ...]],
    weight_dtype: ml.DType,
    rope_scaling_factor: float | None = None,
) -> ModelArgs:
    """Reads the sizes of a model from its parameters, and from its tensors where they are silent.

    The vocabulary is taken from `tok_embeddings.weight` when `vocab_size` is -1 or absent; F is
    taken from `layers.0.feed_forward.w1.weight` when neither `multiple_of` nor
    `ffn_dim_multiplier` is given. Every rule that needs no tensor is checked here;
    `tensor_names.check_shapes` then compares the tensors with the result.

    Args:
        params: The content of `params.json`; its keys are known already.
        shapes: The shape of each tensor by its checkpoint key.
        weight_dtype: dtype of the matrices.
        rope_scaling_factor: Replaces the factor of the scaled RoPE.

    Raises:
        ModelConfigError: A value is missing, of the wrong kind, out of range or contradictory.
    """
    dim = _size(params, "dim")
    n_layers = _size(params, "n_layers")
    n_heads = _size(params, "n_heads")
    n_kv_heads = _size(params, "n_kv_heads", default=n_heads)
    head_dim = _head_dim(dim, n_heads, n_kv_heads)
    rope_theta = _number(params, "rope_theta", default=_DEFAULT_ROPE_THETA)
    rope_scaling = _rope_scaling(params, dim, n_layers, rope_scaling_factor)
    return ModelArgs(
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ffn_dim=_ffn_dim(params, dim, shapes),
        vocab_size=_vocab_size(params, shapes),
        norm_eps=_number(params, "norm_eps"),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_context_length=_max_context_length(params, rope_theta, rope_scaling),
        dtype=ml.bfloat16 if weight_dtype == ml.bfloat16 else ml.float32,
    )


def _wrong(key: str, expected: str, value: object) -> ModelConfigError:
    """Builds the error of one key; the value comes from a file and is escaped and cut."""
    if isinstance(value, int) and value.bit_length() > 256:
        shown = f"a whole number of {value.bit_length()} bits"
    elif isinstance(value, str | int | float):
        shown = ascii(value)
    else:
        shown = f"a value of type {type(value).__name__}"  # to print it could recurse
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ModelConfigError(f"params.json: {key}: expected {expected}, got {shown}")


def _value(params: Mapping[str, object], key: str, default: object) -> object:
    """Returns what the parameters say about a key, or its default; null says nothing."""
    value = params.get(key)
    if value is None and default is None:
        raise ModelConfigError(f"params.json: {key}: expected a value, got none")
    return default if value is None else value


def _size(params: Mapping[str, object], key: str, default: int | None = None) -> int:
    """Returns a whole number from 1 to the largest that is sensible for the key."""
    value = _value(params, key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(key, "a whole number", value)
    if not 1 <= value <= _LARGEST[key]:
        raise _wrong(key, f"1 to {_LARGEST[key]}", value)
    return value


def _number(params: Mapping[str, object], key: str, default: float | None = None) -> float:
    """Returns a number within the range that is sensible for the key."""
    return _in_range(key, _value(params, key, default))


def _in_range(key: str, value: object) -> float:
    """Returns a number as a float; NaN lies in no range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "a number", value)
    low, high = _RANGES[key]
    if not low <= value <= high:
        raise _wrong(key, f"{low:g} to {high:g}", value)
    return float(value)


def _head_dim(dim: int, n_heads: int, n_kv_heads: int) -> int:
    """Returns h = D / H after checking how the heads divide the model dimension."""
    if dim % n_heads:
        raise _wrong("n_heads", f"a divisor of dim {dim}", n_heads)
    if n_heads % n_kv_heads:
        raise _wrong("n_kv_heads", f"a divisor of n_heads {n_heads}", n_kv_heads)
    head_dim = dim // n_heads
    if head_dim % 2:
        raise ModelConfigError(
            "params.json: dim / n_heads: expected an even head dimension, because RoPE turns "
            f"pairs, got {dim} / {n_heads} = {head_dim}"
        )
    return head_dim


def _ffn_dim(params: Mapping[str, object], dim: int, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Returns F = multiple_of * ceil(int(ffn_dim_multiplier * int(2 * 4D / 3)) / multiple_of).

    Source: meta-llama/llama-models, models/llama3/model.py, `FeedForward`.
    """
    multiplier = params.get("ffn_dim_multiplier")
    w1 = shapes.get("layers.0.feed_forward.w1.weight")
    if params.get("multiple_of") is None and multiplier is None and w1 is not None:
        if len(w1) != 2 or w1[0] < 1:
            raise ModelConfigError(
                f"layers.0.feed_forward.w1.weight: expected shape [F, {dim}], got {list(w1)}"
            )
        return w1[0]
    multiple_of = _size(params, "multiple_of", default=_DEFAULT_MULTIPLE_OF)
    hidden = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        hidden = int(_in_range("ffn_dim_multiplier", multiplier) * hidden)
    return multiple_of * max(1, -(-hidden // multiple_of))


def _vocab_size(params: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Returns V, from the embedding table when the parameters leave it open."""
    if params.get("vocab_size") not in (None, -1):
        return _size(params, "vocab_size")
    table = shapes.get("tok_embeddings.weight")
    if table is None:
        raise ModelConfigError(
            "params.json: vocab_size: expected a number or a tensor tok_embeddings.weight, "
            "got neither"
        )
    if len(table) != 2:
        raise ModelConfigError(f"tok_embeddings.weight: expected shape [V, D], got {list(table)}")
    return _size({"vocab_size": table[0]}, "vocab_size")


def _rope_scaling(
    params: Mapping[str, object], dim: int, n_layers: int, factor: float | None
) -> RopeScaling | None:
    """Returns the scaling of a model that asks for it, by the known sizes or as overridden."""
    scaled = params.get("use_scaled_rope")
    if scaled is not None and not isinstance(scaled, bool):
        raise _wrong("use_scaled_rope", "true or false", scaled)
    if not scaled:
        if factor is not None:
            raise ModelConfigError(
                "rope_scaling_factor: expected a model with use_scaled_rope, got one without"
            )
        return None
    if factor is None:
        factor = _KNOWN_SCALED_ROPE_FACTORS.get((dim, n_layers), _SCALED_ROPE_FACTOR)
    return RopeScaling(_in_range("rope_scaling_factor", factor))


def _max_context_length(
    params: Mapping[str, object], rope_theta: float, rope_scaling: RopeScaling | None
) -> int:
    """Returns the longest context: what the parameters say, or what the family was trained for.

    131072 with scaled RoPE (Llama 3.1 and 3.2); 8192 with the rope_theta of 500000 that Llama 3
    introduced; 4096 below it (Llama 2).
    """
    if params.get("max_seq_len") is not None:
        return _size(params, "max_seq_len")
    if rope_scaling is not None:
        return 131072
    return 8192 if rope_theta >= 500000.0 else 4096
