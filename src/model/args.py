"""The sizes and constants of a model: one form for every configuration file.

Each layout has a function that converts its checked keys to `ModelArgs` (`sources/`).
Sizes that only the weights show are completed after their files are open.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from .. import ml
from ..checkpoint.names import LAYER_ROWS, TensorRow, is_harmless, is_matrix, rows_of
from .errors import mismatch

# A smaller value may vanish when it is added to the square of a float32, and then a row
# of zeros gives NaN.
_SMALLEST_NORM_EPS = 1e-12
_LARGEST_ROPE_FACTOR = 1e6
_VECTOR_DTYPES = (ml.bfloat16, ml.float16, ml.float32)
EMBEDDINGS = "tok_embeddings.weight"
OUTPUT = "output.weight"


@dataclass(frozen=True)
class RopeScaling:
    """Scales the slow rotary frequencies for a longer context, as in Llama 3.1.

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192


@dataclass(frozen=True)
class LinearRopeScaling:
    """Divides all rotary frequencies by one factor for a longer context.

    Source: transformers, modeling_rope_utils.py,
    `_compute_linear_scaling_rope_parameters`.
    """

    factor: float


@dataclass(frozen=True)
class RopeFactors:
    """A divisor for each of the h/2 rotary frequencies, from a GGUF file.

    Source: llama.cpp, ggml/src/ggml-cpu/ops.cpp, `ggml_rope_cache_init` (`freq_factors`).
    """

    factors: tuple[float, ...]


class FamilyRopeScaling(ABC):
    """The scaling of the rotary embedding of a family, if it is none of the above.

    Attributes:
        magnitude: The absolute value of the complex numbers of the table.
    """

    magnitude: float

    @abstractmethod
    def scaled(
        self, frequencies: npt.NDArray[np.float64], length: int
    ) -> npt.NDArray[np.float64]:
        """Return the frequencies [r/2] of a context of `length` positions."""

    @property
    @abstractmethod
    def note(self) -> str:
        """Return a line for people."""


@dataclass(frozen=True)
class ModelArgs:
    """The sizes and constants of one model, with the names of `params.json`.

    Before the weights are open, `ffn_dim` and `vocab_size` are 0 if only the tensors show
    them, and `dtype` is a guess from the configuration.

    Attributes:
        n_heads, n_kv_heads: The heads of this process; a rank among several may have
            none.
        max_context_length: The most positions. Within a sliding window every token sees
            all tokens before it, so a window limits the context and changes nothing else.
        dtype: The dtype of the activations and of the KV cache, which the matrices
            determine.
        feed_forward_dtype: The dtype to which the inputs of the feed-forward's matrices
            are rounded; None for `dtype`. It is bfloat16 for GGUF files of BF16, whose
            `dtype` is float32.
        rope_pairs: The elements of a query or key that are rotated together: neighbours
            with Meta's weights, an element of each half with Hugging Face's.
        sliding_window: The window that limits the context, or None.
        biases: The matrices of a layer that have biases, `wq` to `w3`.
        layer_rows: The names and sizes of the tensors of a layer.

    Raises:
        ModelConfigError: The heads do not divide evenly, or the head dimension is odd.
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
    rope_scaling: RopeScaling | LinearRopeScaling | RopeFactors | FamilyRopeScaling | None
    max_context_length: int
    dtype: ml.DType
    feed_forward_dtype: ml.DType | None = None
    rope_pairs: Literal["interleaved", "halves"] = "interleaved"
    sliding_window: int | None = None
    biases: tuple[str, ...] = ()
    layer_rows: tuple[TensorRow, ...] = field(default=LAYER_ROWS, repr=False)

    def __post_init__(self) -> None:
        if self.n_heads % (self.n_kv_heads or 1):
            raise mismatch(
                "n_heads", f"a multiple of n_kv_heads {self.n_kv_heads}", self.n_heads
            )
        if self.head_dim % 2:
            rule = "an even number, because RoPE rotates pairs"
            raise mismatch("head dimension", rule, self.head_dim)
        if not _SMALLEST_NORM_EPS <= self.norm_eps <= 1.0:
            raise mismatch(
                "norm_eps", f"{_SMALLEST_NORM_EPS:g} to 1", f"{self.norm_eps:g}"
            )

    @property
    def group_size(self) -> int:
        """Return G, the query heads that share one key/value head: H / K."""
        return self.n_heads // (self.n_kv_heads or 1)

    @property
    def score_divisor(self) -> float:
        """Return the divisor of the scores before the softmax: sqrt(h)."""
        return math.sqrt(self.head_dim)

    @property
    def rotary_dim(self) -> int:
        """Return the number of rotated elements of a head, which are its first ones."""
        return self.head_dim

    @property
    def stored_parts(self) -> dict[str, tuple[str, ...]]:
        """Return the tensors of each stored tensor, by the first of them."""
        parts: dict[str, list[str]] = {}
        for row in self.tensor_rows:
            parts.setdefault(row.hugging_face, []).append(row.name)
        return {names[0]: tuple(names) for names in parts.values()}

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each stored tensor, by the first tensor in it."""
        shapes = self.tensor_shapes
        return {
            name: (sum(shapes[part][0] for part in parts), *shapes[name][1:])
            for name, parts in self.stored_parts.items()
        }

    @property
    def rotated_layers(self) -> Sequence[int]:
        """Return the layers whose queries and keys are rotated."""
        return range(self.n_layers)

    @property
    def tensor_rows(self) -> tuple[TensorRow, ...]:
        """Return the rows of all tensors, by the table of `checkpoint/names.py`."""
        return rows_of(self.n_layers, self.layer_rows, self.biases)

    def quantized(self) -> Self:
        """Return the args for weights that are quantized on loading.

        All their activations have one dtype.
        """
        return replace(
            self, dtype=self.feed_forward_dtype or self.dtype, feed_forward_dtype=None
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by the letters of the legend."""
        heads = (self.n_heads, self.n_kv_heads, self.group_size, self.head_dim)
        sizes = (self.dim, *heads, self.ffn_dim, self.vocab_size, self.n_layers)
        return dict(zip("DHKGhFVL", sizes, strict=True))

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """Return the known sizes of tensors, by the letters of `checkpoint/names.py`."""
        Hh = self.n_heads * self.head_dim
        Kh = self.n_kv_heads * self.head_dim
        known = {letter: size for letter, size in self.sizes.items() if letter in "DhFV"}
        known |= {"Hh": Hh, "Kh": Kh}
        return {letter: size for letter, size in known.items() if size}

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by checkpoint key; an unknown size is 0."""
        sizes = self.tensor_sizes
        return {
            row.name: tuple(sizes.get(letter, 0) for letter in row.sizes)
            for row in self.tensor_rows
        }


def with_rope_factor(args: ModelArgs, factor: float | None) -> ModelArgs:
    """Replace the factor of a scaled RoPE; None keeps it.

    Raise ModelConfigError if RoPE has no such factor, or the factor is out of range.
    """
    if factor is None:
        return args
    if args.rope_scaling is None or isinstance(
        args.rope_scaling, RopeFactors | FamilyRopeScaling
    ):
        factor_count = "none" if args.rope_scaling is None else "one for each frequency"
        rule = "a model with one scaling factor"
        raise mismatch("rope_scaling_factor", rule, factor_count)
    if not 1.0 <= factor <= _LARGEST_ROPE_FACTOR:  # NaN is in no range
        raise mismatch(
            "rope_scaling_factor", f"1 to {_LARGEST_ROPE_FACTOR:g}", f"{factor:g}"
        )
    return replace(args, rope_scaling=replace(args.rope_scaling, factor=float(factor)))


def activation_dtype(dtypes: Mapping[str, ml.DType | ml.BlockDType]) -> ml.DType:
    """Return the dtype of the activations: the dtype of products with the matrices.

    All plain matrices must have the same dtype, with two exceptions: the embedding table
    may be bfloat16 while the others are 8-bit floats, and a mixture of bfloat16, float16
    and float32 gives float32. Quantized matrices may accompany any dtype; if all are
    quantized, it is bfloat16. Raise ModelConfigError otherwise, and for a vector of
    another dtype.
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
