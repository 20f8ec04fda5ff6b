"""The sizes and constants of a model: one form for every configuration file.

Each layout has a function that reads its checked keys into `ModelArgs` (`sources/`). What
only the weights show is completed once their files are open.
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

# Below this, the square of a float32 may vanish against nothing and a row of zeros give
# NaN.
_SMALLEST_NORM_EPS = 1e-12
_LARGEST_ROPE_FACTOR = 1e6
_VECTOR_DTYPES = (ml.bfloat16, ml.float16, ml.float32)
EMBEDDINGS = "tok_embeddings.weight"
OUTPUT = "output.weight"


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 scales the slow rotary frequencies for a longer context.

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192


@dataclass(frozen=True)
class LinearRopeScaling:
    """How a context is lengthened by making all rotary frequencies slower by one factor.

    Source: transformers, modeling_rope_utils.py,
    `_compute_linear_scaling_rope_parameters`.
    """

    factor: float


@dataclass(frozen=True)
class RopeFactors:
    """What divides each rotary frequency, as GGUF files say it: h/2 factors.

    Source: llama.cpp, ggml/src/ggml-cpu/ops.cpp, `ggml_rope_cache_init` (`freq_factors`).
    """

    factors: tuple[float, ...]


class FamilyRopeScaling(ABC):
    """How a family scales its rotary embedding, in another way than those above.

    Attributes:
        magnitude: The length of the complex numbers of the table.
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
    """The sizes and constants of one model, in the words of `params.json`.

    Before the weights are open, `ffn_dim` and `vocab_size` are 0 where the configuration
    leaves them to the tensors, and `dtype` is what the configuration makes likely.

    Attributes:
        n_heads, n_kv_heads: Those of this process: of one among several, perhaps none.
        max_context_length: The most positions. Within a sliding window every token sees
            all before it, so a window caps the context and changes nothing else.
        dtype: That of the activations and of the KV cache; it follows from the matrices.
        feed_forward_dtype: To what the inputs of the feed-forward's matrices are rounded;
            None for `dtype`. It is bfloat16 in GGUF files of BF16, whose `dtype` is
            float32.
        rope_pairs: Which elements of a query or key are rotated together: neighbours with
            Meta's weights, those of the two halves with Hugging Face's.
        sliding_window: The window that caps the context, or None.
        biases: The matrices of a layer that have biases, `wq` to `w3`.
        layer_rows: The names and sizes of the tensors of a layer.

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
        """Return what scores are divided by before the softmax: sqrt(h)."""
        return math.sqrt(self.head_dim)

    @property
    def rotary_dim(self) -> int:
        """Return how many elements of a head are rotated, the first ones."""
        return self.head_dim

    @property
    def stored_parts(self) -> dict[str, tuple[str, ...]]:
        """Return the tensors that each stored tensor consists of,
        by the first of them.
        """
        parts: dict[str, list[str]] = {}
        for row in self.tensor_rows:
            parts.setdefault(row.hugging_face, []).append(row.name)
        return {names[0]: tuple(names) for names in parts.values()}

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each stored tensor, by the first tensor that it consists
        of.
        """
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
        """Return them for weights quantized on loading:
        all activations have one dtype.
        """
        return replace(
            self, dtype=self.feed_forward_dtype or self.dtype, feed_forward_dtype=None
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by the letters of the legend."""
        of_heads = (self.n_heads, self.n_kv_heads, self.group_size, self.head_dim)
        sizes = (self.dim, *of_heads, self.ffn_dim, self.vocab_size, self.n_layers)
        return dict(zip("DHKGhFVL", sizes, strict=True))

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """Return the sizes of tensors that are known, by the letters of
        `checkpoint/names.py`.
        """
        Hh = self.n_heads * self.head_dim
        Kh = self.n_kv_heads * self.head_dim
        known = {letter: size for letter, size in self.sizes.items() if letter in "DhFV"}
        return {
            letter: size
            for letter, size in (known | {"Hh": Hh, "Kh": Kh}).items()
            if size
        }

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by checkpoint key; an unknown size counts 0."""
        sizes = self.tensor_sizes
        return {
            row.name: tuple(sizes.get(letter, 0) for letter in row.sizes)
            for row in self.tensor_rows
        }


def with_rope_factor(args: ModelArgs, factor: float | None) -> ModelArgs:
    """Replace the factor of a scaled RoPE; None leaves it.

    Raise ModelConfigError where RoPE is not scaled by one, or the factor is out of its
    range.
    """
    if factor is None:
        return args
    if args.rope_scaling is None or isinstance(
        args.rope_scaling, RopeFactors | FamilyRopeScaling
    ):
        found = (
            "one without" if args.rope_scaling is None else "a factor for each frequency"
        )
        rule = "a model whose RoPE is scaled by one factor"
        raise mismatch("rope_scaling_factor", rule, found)
    if not 1.0 <= factor <= _LARGEST_ROPE_FACTOR:  # NaN is in no range
        raise mismatch(
            "rope_scaling_factor", f"1 to {_LARGEST_ROPE_FACTOR:g}", f"{factor:g}"
        )
    return replace(args, rope_scaling=replace(args.rope_scaling, factor=float(factor)))


def activation_dtype(dtypes: Mapping[str, ml.DType | ml.BlockDType]) -> ml.DType:
    """Return the dtype of the activations: the one in which products with the matrices
    run.

    All plain matrices must have the same dtype; but the embedding table may be bfloat16
    beside 8-bit floats, and bfloat16, float16 and float32 go together, with float32.
    Quantized matrices go with any, and where all are quantized it is bfloat16. Raise
    ModelConfigError otherwise, and for a vector whose dtype does not go with activations.
    """
    for name, each in dtypes.items():
        if each not in _VECTOR_DTYPES and not is_matrix(name) and not is_harmless(name):
            rule = f"one of {', '.join(map(str, _VECTOR_DTYPES))}"
            raise mismatch(f"tensor {name}", rule, each)
    matrices = {
        n: d for n, d in dtypes.items() if is_matrix(n) and isinstance(d, ml.DType)
    }
    embeddings = matrices.pop(EMBEDDINGS, None)
    found = set(matrices.values())
    beside_float8 = found and all(
        dtype.itemsize < ml.bfloat16.itemsize for dtype in found
    )
    if embeddings is not None and not (beside_float8 and embeddings is ml.bfloat16):
        found.add(embeddings)
    if len(found) > 1 and found <= {*_VECTOR_DTYPES}:
        return ml.float32
    if not found and any(isinstance(dtype, ml.BlockDType) for dtype in dtypes.values()):
        return ml.bfloat16
    if len(found) != 1:
        names = ", ".join(sorted(dtype.name for dtype in found))
        raise mismatch("tensors", "matrices of one dtype", names or "none")
    dtype = found.pop()
    if not dtype.product_type:
        raise mismatch("tensors", "floating-point weights", dtype.name)
    return ml.bfloat16 if dtype.product_type == "bfloat16" else ml.float32
