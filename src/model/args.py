"""The sizes and constants of a model, from its checked parameters and its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .. import ml
from .errors import ModelConfigError

_DEFAULT_ROPE_THETA = 10000.0  # Llama 2, whose params.json does not name it
# Below this, the square of a float32 may vanish against nothing and a row of zeros give NaN.
_SMALLEST_NORM_EPS = 1e-12
_SCALED_ROPE_FACTOR = 8.0
# (dim, n_layers) of the sizes whose RoPE is scaled by another factor than Llama 3.1's. Their
# params.json says only `use_scaled_rope`; the factor is in their Hugging Face config.json.
_KNOWN_SCALED_ROPE_FACTORS = {(2048, 16): 32.0, (3072, 28): 32.0}
_LARGEST_ROPE_FACTOR = 1e6
_WEIGHT_DTYPES = (ml.bfloat16, ml.float16, ml.float32)


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
class LinearRopeScaling:
    """How a context is stretched by making all rotary frequencies slower by one factor.

    Source: transformers, modeling_rope_utils.py, `_compute_linear_scaling_rope_parameters`.
    """

    factor: float


@dataclass(frozen=True)
class ModelArgs:
    """The sizes and constants of one model, in the words of `params.json`.

    `dtype` is that of the activations and of the KV cache: bfloat16 for bfloat16 weights, float32
    for float32 and float16 weights. `rope_pairs` says which elements of a query or key turn
    together: neighbours with Meta's weights, those of the two halves with Hugging Face's.

    Raises:
        ModelConfigError: Heads that do not divide evenly, or an odd head dimension.
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
    rope_scaling: RopeScaling | LinearRopeScaling | None
    max_context_length: int
    dtype: ml.DType
    rope_pairs: Literal["interleaved", "halves"] = "interleaved"

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ModelConfigError(
                f"n_heads: expected a multiple of n_kv_heads {self.n_kv_heads}, got {self.n_heads}"
            )
        if self.head_dim % 2:
            raise ModelConfigError(
                "head dimension: expected an even number, because RoPE turns pairs, "
                f"got {self.head_dim}"
            )
        if not _SMALLEST_NORM_EPS <= self.norm_eps <= 1.0:
            raise ModelConfigError(
                f"norm_eps: expected {_SMALLEST_NORM_EPS:g} to 1, got {self.norm_eps:g}"
            )

    @property
    def group_size(self) -> int:
        """Return G, the query heads that share one key/value head: H / K."""
        return self.n_heads // self.n_kv_heads

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by the letters of the legend."""
        return {
            "D": self.dim,
            "H": self.n_heads,
            "K": self.n_kv_heads,
            "G": self.group_size,
            "h": self.head_dim,
            "F": self.ffn_dim,
            "V": self.vocab_size,
            "L": self.n_layers,
        }


def model_args(
    params: Mapping[str, object],
    tensors: Mapping[str, ml.Weight],
    rope_scaling_factor: float | None = None,
) -> ModelArgs:
    """Put together what `params.json` says and what the tensors say.

    V and F are sizes of the tensors, which the checkpoint has compared with the parameters.

    Args:
        params: The content of `params.json`, keys and values checked.
        tensors: The weights by checkpoint key, names and shapes checked.
        rope_scaling_factor: Replaces the factor of a scaled RoPE.

    Raises:
        ModelConfigError: The parts contradict each other.
    """
    dim, n_layers, n_heads = (whole_number(params, key) for key in ("dim", "n_layers", "n_heads"))
    n_kv_heads = whole_number(params, "n_kv_heads", default=n_heads)
    rope_theta = _number(params, "rope_theta", default=_DEFAULT_ROPE_THETA)
    scaled = bool(params.get("use_scaled_rope", False))
    return ModelArgs(
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=dim // n_heads,
        ffn_dim=tensors["layers.0.feed_forward.w1.weight"].shape[0],
        vocab_size=tensors["tok_embeddings.weight"].shape[0],
        norm_eps=_number(params, "norm_eps"),
        rope_theta=rope_theta,
        rope_scaling=_rope_scaling(scaled, (dim, n_layers), rope_scaling_factor),
        max_context_length=meta_context_length(params),
        dtype=activation_dtype(tensors),
    )


def meta_context_length(params: Mapping[str, object]) -> int:
    """Return the longest context of a model in Meta's layout, as said or as its family has it.

    Args:
        params: The content of `params.json`, keys and values checked.
    """
    scaled = bool(params.get("use_scaled_rope", False))
    rope_theta = _number(params, "rope_theta", default=_DEFAULT_ROPE_THETA)
    default = _family_context_length(scaled, rope_theta)
    return whole_number(params, "max_seq_len", default=default)


def whole_number(params: Mapping[str, object], key: str, default: int | None = None) -> int:
    """Return a whole number of the parameters.

    Raises:
        ModelConfigError: It is none.
    """
    value = params.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelConfigError(f"{key}: expected a whole number, got {type(value).__name__}")
    return value


def _number(params: Mapping[str, object], key: str, default: float | None = None) -> float:
    """Return a number of the parameters."""
    value = params.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelConfigError(f"{key}: expected a number, got {type(value).__name__}")
    return float(value)


def _rope_scaling(
    scaled: bool, sizes: tuple[int, int], override: float | None
) -> RopeScaling | None:
    """Return the scaling of a model that asks for it, by its known sizes or as overridden."""
    if not scaled:
        if override is not None:
            raise ModelConfigError(
                "rope_scaling_factor: expected a model with use_scaled_rope, got one without"
            )
        return None
    if override is None:
        return RopeScaling(_KNOWN_SCALED_ROPE_FACTORS.get(sizes, _SCALED_ROPE_FACTOR))
    return RopeScaling(checked_rope_factor(override))


def checked_rope_factor(override: float) -> float:
    """Return a factor that replaces the one of the files, in its range."""
    if not 1.0 <= override <= _LARGEST_ROPE_FACTOR:  # NaN lies in no range
        raise ModelConfigError(
            f"rope_scaling_factor: expected 1 to {_LARGEST_ROPE_FACTOR:g}, got {override:g}"
        )
    return float(override)


def _family_context_length(scaled: bool, rope_theta: float) -> int:
    """Return the context that a family was trained for, where the parameters do not say.

    131072 with scaled RoPE (Llama 3.1 and 3.2), 8192 with the rope_theta of 500000 that came with
    Llama 3, 4096 below it (Llama 2).
    """
    if scaled:
        return 131072
    return 8192 if rope_theta >= 500000.0 else 4096


def activation_dtype(tensors: Mapping[str, ml.Weight]) -> ml.DType:
    """Return the dtype that goes with the matrices, all of which must have the same one.

    Quantised matrices go with any; the embedding table is always plain.
    """
    plain = (tensor for tensor in tensors.values() if isinstance(tensor, ml.Tensor))
    found = {tensor.dtype for tensor in plain if tensor.ndim == 2}
    if len(found) != 1:
        names = ", ".join(sorted(dtype.name for dtype in found))
        raise ModelConfigError(f"tensors: expected matrices of one dtype, got {names or 'none'}")
    dtype = found.pop()
    if dtype not in _WEIGHT_DTYPES:
        raise ModelConfigError(f"tensors: expected floating-point weights, got {dtype.name}")
    return ml.bfloat16 if dtype == ml.bfloat16 else ml.float32
