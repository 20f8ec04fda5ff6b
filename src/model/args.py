"""The sizes and constants of a model, independent of its configuration format.

Each file layout in `sources/` has a function that converts checked keys to `ModelArgs`.
Sizes that are known only from the weights are set after the weight files are opened.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import ml
from ..checkpoint.names import (
    EMBEDDINGS,
    LAYER_ROWS,
    Layout,
    TensorRow,
    is_harmless,
    is_matrix,
    rows_of,
    stack_name,
    stored_rows,
)
from ..checkpoint.params import LARGEST_SIZE
from ..choices import CACHE_TYPES
from .errors import mismatch

# A smaller epsilon may vanish when it is added to a squared float32 element. A row of
# zeros would then be normalized to NaN.
_SMALLEST_NORM_EPS = 1e-12
_LARGEST_ROPE_FACTOR = 1e6
_VECTOR_DTYPES = (ml.bfloat16, ml.float16, ml.float32)
# The letters of sizes in `checkpoint/names.py` that differ from those in the legend.
_LEGEND_LETTERS = {"Hh": "H*h", "Kh": "K*h"}


@dataclass(frozen=True)
class RopeScaling:
    """Scaling of low rotary frequencies for a longer context, as in Llama 3.1.

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192


@dataclass(frozen=True)
class LinearRopeScaling:
    """Division of all rotary frequencies by one factor for a longer context.

    Source: transformers, modeling_rope_utils.py,
    `_compute_linear_scaling_rope_parameters`.
    """

    factor: float


@dataclass(frozen=True)
class RopeFactors:
    """A separate divisor for each of the h/2 rotary frequencies, from a GGUF file.

    Source: llama.cpp, ggml/src/ggml-cpu/ops.cpp, `ggml_rope_cache_init` (`freq_factors`).
    """

    factors: tuple[float, ...]


class ComputedRopeScaling(ABC):
    """Base class of RoPE scalings that compute the frequencies themselves.

    Subclasses are YaRN and the scalings that are specific to a model family.
    """

    @property
    @abstractmethod
    def magnitude(self) -> float:
        """Return the absolute value of the complex numbers in the rotary table."""

    def magnitudes(
        self, positions: npt.NDArray[np.float64], /
    ) -> npt.NDArray[np.float64]:
        """Return the absolute values at positions [n], which are usually equal."""
        return np.full(len(positions), self.magnitude)

    @abstractmethod
    def scaled(
        self, frequencies: npt.NDArray[np.float64], theta: float, length: int, /
    ) -> npt.NDArray[np.float64]:
        """Return the scaled frequencies [r/2] for a context of `length` positions.

        The unscaled frequencies are theta ** (-2 i / r).
        """

    @property
    @abstractmethod
    def note(self) -> str:
        """Return a one-line description of the scaling for the user."""


@dataclass(frozen=True)
class YarnRopeScaling(ComputedRopeScaling):
    """YaRN: division of low rotary frequencies, and longer queries and keys.

    A frequency that completes at least `beta_fast` rotations in the original context is
    kept. One that completes at most `beta_slow` rotations is divided by the factor. In
    between, the share of the division grows linearly with the index of the frequency.

    Attributes:
        factor: The divisor of the low frequencies.
        original_context_length: The context length in training.
        beta_fast, beta_slow: The rotations at both ends of the transition.
        truncate: Whether the transition begins and ends at whole indices.
        attention_factor: The factor applied to rotated queries and keys. None for the
            factor that follows from the others.
        mscale, mscale_all_dim: If both are set, the attention factor is the quotient of
            two magnitudes with these coefficients.

    Source: Peng et al., YaRN, 2023; transformers, modeling_rope_utils.py,
    `_compute_yarn_parameters`.
    """

    factor: float
    original_context_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        if self.beta_fast < self.beta_slow:
            rule = f"at least beta_slow {self.beta_slow:g}"
            raise mismatch("beta_fast", rule, f"{self.beta_fast:g}")

    @property
    def plain_magnitude(self) -> float:
        """Return the attention factor of the paper: 0.1 ln(factor) + 1."""
        return self._magnitude(1.0)

    @property
    def magnitude(self) -> float:
        """Return the attention factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self.plain_magnitude

    @property
    def context_length(self) -> int:
        """Return the number of positions that the scaling is meant for."""
        return min(int(self.factor * self.original_context_length), LARGEST_SIZE)

    @property
    def note(self) -> str:
        """Return a one-line description of the scaling for the user."""
        return (
            f"RoPE scaled by YaRN from {self.original_context_length} positions, "
            f"factor {self.factor:g}"
        )

    def scaled(
        self, frequencies: npt.NDArray[np.float64], theta: float, _length: int, /
    ) -> npt.NDArray[np.float64]:
        """Return the scaled frequencies [r/2], which are the same for any length."""
        pairs = len(frequencies)
        low = self._index(self.beta_fast, pairs, theta)
        high = self._index(self.beta_slow, pairs, theta)
        if self.truncate:
            low = math.floor(low)
            high = math.ceil(high)
        low = max(low, 0)
        high = min(high, 2 * pairs - 1)
        width = high - low or 0.001  # the transition is steep if it has no width
        indices = np.arange(pairs, dtype=np.float64)
        divided: npt.NDArray[np.float64] = ((indices - low) / width).clip(0, 1)
        return frequencies / self.factor * divided + frequencies * (1 - divided)

    def _index(self, rotations: float, pairs: int, theta: float) -> float:
        """Return the index of the frequency with this many rotations in the context."""
        frequency = rotations * 2 * math.pi / self.original_context_length
        return -pairs * math.log(frequency) / math.log(theta)

    def _magnitude(self, coefficient: float) -> float:
        return 0.1 * coefficient * math.log(self.factor) + 1.0


AnyRopeScaling: TypeAlias = (
    RopeScaling | LinearRopeScaling | RopeFactors | ComputedRopeScaling
)


@dataclass(frozen=True)
class ModelArgs:
    """The sizes and constants of a model, with the same names as in `params.json`.

    Until the weights are opened, `ffn_dim` and `vocab_size` are 0 if only the tensors
    contain them, and `dtype` is a guess from the configuration.

    Attributes:
        n_heads, n_kv_heads: The number of heads in this process. With several ranks, a
            rank may have no heads.
        max_context_length: The maximum number of positions. With a sliding window, it is
            at most the size of the window, so that every token can see all earlier tokens
            and attention needs no other change.
        dtype: The dtype of the activations, determined by the matrices.
        feed_forward_dtype: The dtype to which the inputs of the feed-forward matrices are
            rounded, or None for `dtype`. It is bfloat16 for BF16 weights in GGUF files,
            whose `dtype` is float32.
        rope_pairs: The pairs of elements in a query or key that are rotated together:
            adjacent elements ("interleaved", Meta) or one element from each half
            ("halves", Hugging Face).
        sliding_window: The size of the window that limits the context, or None.
        norm_offset: The number that is added to the weights of norms in the files.
        biases: The matrices in a layer that have biases, out of `wq` to `w3`.
        n_experts: The number of experts in each feed-forward, or 0 without experts.
        n_active_experts: The number of experts that a token uses.
        has_shares_of_all: Whether the weights of a token's experts are shares of all
            experts, so that their sum is less than 1. Otherwise, it is 1.
        layer_rows: The names and sizes of the tensors in a layer.
        cache_type: "plain" for a KV cache in `dtype`, or "q8_0".

    Raises:
        ModelConfigError: The heads do not divide evenly, the head dimension is odd or not
            a multiple of 32 with a q8_0 cache, or a value is out of range.
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
    rope_scaling: AnyRopeScaling | None
    max_context_length: int
    dtype: ml.DType
    feed_forward_dtype: ml.DType | None = None
    rope_pairs: Literal["interleaved", "halves"] = "interleaved"
    sliding_window: int | None = None
    norm_offset: float = 0.0
    biases: tuple[str, ...] = ()
    n_experts: int = 0
    n_active_experts: int = 0
    has_shares_of_all: bool = False
    layer_rows: tuple[TensorRow, ...] = field(default=LAYER_ROWS, repr=False)
    cache_type: str = CACHE_TYPES[0]

    def __post_init__(self) -> None:
        if self.n_heads % (self.n_kv_heads or 1):
            raise mismatch(
                "n_heads", f"a multiple of n_kv_heads {self.n_kv_heads}", self.n_heads
            )
        if self.head_dim % 2:
            rule = "an even number, because RoPE rotates pairs"
            raise mismatch("head dimension", rule, self.head_dim)
        if self.cache_type not in CACHE_TYPES:
            rule = f"one of {', '.join(CACHE_TYPES)}"
            raise mismatch("cache_type", rule, ascii(self.cache_type)[:80])
        block_size = getattr(self.cache_dtype, "block_size", 1)
        if self.head_dim % block_size:
            rule = f"plain, because heads of {self.head_dim} elements are not a multiple"
            raise mismatch("cache_type", f"{rule} of {block_size}", self.cache_type)
        if not _SMALLEST_NORM_EPS <= self.norm_eps <= 1.0:
            raise mismatch(
                "norm_eps", f"{_SMALLEST_NORM_EPS:g} to 1", f"{self.norm_eps:g}"
            )
        if self.n_active_experts > self.n_experts:
            rule = f"at most the {self.n_experts} experts"
            raise mismatch("experts per token", rule, self.n_active_experts)
        for theta, scaling in self.rope_tables:
            if isinstance(scaling, YarnRopeScaling) and theta <= 1:
                raise mismatch("rope_theta", "more than 1 with YaRN", f"{theta:g}")

    @property
    def cache_dtype(self) -> ml.DType | ml.BlockDType:
        """Return the dtype of the KV cache."""
        return self.dtype if self.cache_type == CACHE_TYPES[0] else ml.CACHE_Q8_0

    @property
    def group_size(self) -> int:
        """Return G, the number of query heads that share a key/value head: H / K."""
        return self.n_heads // (self.n_kv_heads or 1)

    @property
    def score_divisor(self) -> float:
        """Return the divisor of the attention scores before the softmax: sqrt(h)."""
        return math.sqrt(self.head_dim)

    @property
    def rotary_dim(self) -> int:
        """Return the number of rotated elements, which are at the beginning of a head."""
        return self.head_dim

    def stored_parts(self, layout: Layout) -> dict[str, tuple[str, ...]]:
        """Return the names of the tensors in each stored tensor, by the first name."""
        parts: dict[str, list[str]] = {}
        for row in self.tensor_rows:
            parts.setdefault(getattr(row, layout), []).append(row.name)
        return {names[0]: tuple(names) for names in parts.values()}

    def stored_shapes(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        """Return the shape of each stored tensor, by the name of its first tensor."""
        sizes = self.tensor_sizes
        return {
            row.name: tuple(
                sum(sizes.get(each, 0) for each in letters.split("+"))
                for letters in row.sizes
            )
            for row in stored_rows(self.tensor_rows, layout).values()
        }

    @property
    def rotated_layers(self) -> Sequence[int]:
        """Return the layers in which queries and keys are rotated."""
        return range(self.n_layers)

    @property
    def rotated_weights(self) -> frozenset[str]:
        """Return the names of the weights whose row order depends on RoPE.

        The names have no `.weight` or `.bias` suffix.
        """
        return frozenset(
            f"layers.{layer}.attention.{matrix}"
            for layer in self.rotated_layers
            for matrix in ("wq", "wk")
        )

    @property
    def rope_tables(self) -> Sequence[tuple[float, Any]]:
        """Return theta and the scaling of each rotary table, usually of only one."""
        return [(self.rope_theta, self.rope_scaling)]

    @property
    def rope_table_of_layer(self) -> Sequence[int]:
        """Return, for each layer, the index of its rotary table."""
        return [0] * self.n_layers

    @property
    def windows(self) -> Sequence[int | None]:
        """Return, for each layer, the number of positions that a token sees, or None."""
        return [None] * self.n_layers

    @property
    def tensor_rows(self) -> tuple[TensorRow, ...]:
        """Return the rows for all tensors, as defined in `checkpoint/names.py`."""
        return rows_of(self.n_layers, self.layer_rows, self.biases, self.n_experts)

    @property
    def unused_by_a_token(self) -> frozenset[str]:
        """Return the names of as many tensors of experts as a token does not use."""
        return frozenset(
            row.name
            for row in self.tensor_rows
            if row.expert is not None and row.expert >= self.n_active_experts
        )

    def quantized(self) -> Self:
        """Return the args for weights that are quantized while loading.

        All activations then have the same dtype.
        """
        return replace(
            self, dtype=self.feed_forward_dtype or self.dtype, feed_forward_dtype=None
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by their letters in the legend."""
        heads = (self.n_heads, self.n_kv_heads, self.group_size, self.head_dim)
        sizes = (self.dim, *heads, self.ffn_dim, self.vocab_size, self.n_layers)
        named = dict(zip("DHKGhFVL", sizes, strict=True))
        if self.n_experts:
            named |= {"E": self.n_experts, "A": self.n_active_experts}
        return named

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """Return the known tensor sizes by their letters in `checkpoint/names.py`."""
        Hh = self.n_heads * self.head_dim
        Kh = self.n_kv_heads * self.head_dim
        known = {
            letter: size for letter, size in self.sizes.items() if letter in "DHhFVE"
        }
        known |= {"Hh": Hh, "Kh": Kh}
        return {letter: size for letter, size in known.items() if size}

    @property
    def tensor_letters(self) -> dict[str, tuple[str, ...]]:
        """Return the shape of each tensor in letters of the legend, by checkpoint key."""
        letters: dict[str, tuple[str, ...]] = {}
        for row in self.tensor_rows:
            of_row = tuple(_LEGEND_LETTERS.get(letter, letter) for letter in row.sizes)
            letters[row.name] = of_row
            if row.expert is not None:
                letters[stack_name(row)] = ("E", *of_row)
        return letters

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by checkpoint key, with 0 for unknown sizes."""
        sizes = self.tensor_sizes
        return {
            row.name: tuple(sizes.get(letter, 0) for letter in row.sizes)
            for row in self.tensor_rows
        }


def with_rope_factor(args: ModelArgs, factor: float | None) -> ModelArgs:
    """Replace the RoPE scaling factor, or return args unchanged if `factor` is None.

    Raises ModelConfigError if the model does not have one scaling factor, or if the new
    factor is out of range.
    """
    if factor is None:
        return args
    scaling = args.rope_scaling
    if not isinstance(scaling, RopeScaling | LinearRopeScaling | YarnRopeScaling):
        factor_count = "none" if scaling is None else "one for each frequency"
        rule = "a model with one scaling factor"
        raise mismatch("rope_scaling_factor", rule, factor_count)
    if not 1.0 <= factor <= _LARGEST_ROPE_FACTOR:  # also rejects NaN
        raise mismatch(
            "rope_scaling_factor", f"1 to {_LARGEST_ROPE_FACTOR:g}", f"{factor:g}"
        )
    scaling = replace(scaling, factor=float(factor))
    longest = args.max_context_length
    if isinstance(scaling, YarnRopeScaling):
        longest = max(longest, scaling.context_length)
    return replace(args, rope_scaling=scaling, max_context_length=longest)


def activation_dtype(dtypes: Mapping[str, ml.DType | ml.BlockDType]) -> ml.DType:
    """Return the dtype of the activations, determined by the dtype of the matrices.

    All plain matrices must have the same dtype, with two exceptions. The embedding table
    may be bfloat16 while the other matrices are 8-bit floats. If bfloat16, float16 and
    float32 matrices are mixed, the result is float32. Quantized matrices can be combined
    with any dtype; if all matrices are quantized, the result is bfloat16. Raises
    ModelConfigError for other combinations, and for a vector with an unsupported dtype.
    """
    for name, dtype in dtypes.items():
        if dtype not in _VECTOR_DTYPES and not is_matrix(name) and not is_harmless(name):
            rule = f"one of {', '.join(map(str, _VECTOR_DTYPES))}"
            raise mismatch(f"tensor {name}", rule, dtype)
    matrices = {
        n: d for n, d in dtypes.items() if is_matrix(n) and isinstance(d, ml.DType)
    }
    embeddings = matrices.pop(EMBEDDINGS, None)
    matrix_dtypes = set(matrices.values())
    are_float8 = matrix_dtypes and all(
        dtype.itemsize < ml.bfloat16.itemsize for dtype in matrix_dtypes
    )
    if embeddings is not None and not (are_float8 and embeddings is ml.bfloat16):
        matrix_dtypes.add(embeddings)
    if len(matrix_dtypes) > 1 and matrix_dtypes <= {*_VECTOR_DTYPES}:
        return ml.float32
    if not matrix_dtypes and any(
        isinstance(dtype, ml.BlockDType) for dtype in dtypes.values()
    ):
        return ml.bfloat16
    if len(matrix_dtypes) != 1:
        names = ", ".join(sorted(dtype.name for dtype in matrix_dtypes))
        raise mismatch("tensors", "matrices of one dtype", names or "none")
    dtype = matrix_dtypes.pop()
    if not dtype.product_type:
        raise mismatch("tensors", "floating-point weights", dtype.name)
    return ml.bfloat16 if dtype.product_type == "bfloat16" else ml.float32
