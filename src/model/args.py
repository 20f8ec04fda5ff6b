"""The sizes and constants of a model: one form for every configuration file.

Each source has a function that reads its checked keys into `ModelArgs`, and holds its defaults.
What only the weights show is completed once their files are open.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from .. import ml
from ..checkpoint.hugging_face_config import CONFIG_KEYS, MULTIPLIERS, HuggingFaceConfig
from ..checkpoint.names import LLAMA_PARTS, LayerParts, is_harmless, is_matrix, rows_of
from ..checkpoint.params import PARAMS_KEYS, sizes_of, value_of
from .errors import mismatch

if TYPE_CHECKING:
    from ..checkpoint.gguf import GgufTensor
    from ..checkpoint.gguf_config import GgufConfig

# Below this, the square of a float32 may vanish against nothing and a row of zeros give NaN.
_SMALLEST_NORM_EPS = 1e-12
_SCALED_ROPE_FACTOR = 8.0
# (dim, n_layers) of the sizes whose RoPE is scaled by another factor than Llama 3.1's. Their
# params.json says only `use_scaled_rope`; the factor is in their Hugging Face config.json.
_KNOWN_SCALED_ROPE_FACTORS = {(2048, 16): 32.0, (3072, 28): 32.0}
_LARGEST_ROPE_FACTOR = 1e6
_MATRICES = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
_VECTOR_DTYPES = (ml.bfloat16, ml.float16, ml.float32)
EMBEDDINGS = "tok_embeddings.weight"

FAMILY_PARTS: Mapping[str, LayerParts] = {
    "qwen2": LayerParts(biases=("wq", "wk", "wv")),
    "qwen3": LayerParts(query_key_norm="head"),
    "olmo2": LayerParts(query_key_norm="all", norms_after=True),
}
"""The families whose layers have other tensors than those of Llama."""


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

    Source: transformers, modeling_rope_utils.py, `_compute_linear_scaling_rope_parameters`.
    """

    factor: float


@dataclass(frozen=True)
class RopeFactors:
    """What divides each rotary frequency, as GGUF files say it: h/2 factors.

    Source: llama.cpp, ggml/src/ggml-cpu/ops.cpp, `ggml_rope_cache_init` (`freq_factors`).
    """

    factors: tuple[float, ...]


@dataclass(frozen=True)
class ModelArgs:
    """The sizes and constants of one model, in the words of `params.json`.

    Before the weights are open, `ffn_dim` and `vocab_size` are 0 where the configuration leaves
    them to the tensors, and `dtype` is what the configuration makes likely.

    Attributes:
        n_heads, n_kv_heads: Those of this process: of one among several, perhaps none.
        max_context_length: The most positions. Within a sliding window every token sees all before
            it, so a window caps the context and changes nothing else.
        dtype: That of the activations and of the KV cache; it follows from the matrices.
        feed_forward_dtype: To what the inputs of the feed-forward's matrices are rounded; None for
            `dtype`. It is bfloat16 in GGUF files of BF16, whose `dtype` is float32.
        rope_pairs: Which elements of a query or key are rotated together: neighbours with Meta's
            weights, those of the two halves with Hugging Face's.
        parts: In what the tensors of a layer differ from those of Llama.
        layers_without_rope: The layers whose queries and keys are not rotated.
        embedding_multiplier: What embeddings are multiplied by.
        attention_multiplier: What scores are multiplied by; None for 1 / sqrt(h).
        residual_multiplier: What is multiplied by it before it is added to the residual stream.
        logits_scaling: What logits are divided by.
        sliding_window: The window that caps the context, or None.

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
    rope_scaling: RopeScaling | LinearRopeScaling | RopeFactors | None
    max_context_length: int
    dtype: ml.DType
    feed_forward_dtype: ml.DType | None = None
    rope_pairs: Literal["interleaved", "halves"] = "interleaved"
    parts: LayerParts = LLAMA_PARTS
    layers_without_rope: tuple[int, ...] = ()
    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = None
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        if self.n_heads % (self.n_kv_heads or 1):
            raise mismatch("n_heads", f"a multiple of n_kv_heads {self.n_kv_heads}", self.n_heads)
        if self.head_dim % 2:
            rule = "an even number, because RoPE rotates pairs"
            raise mismatch("head dimension", rule, self.head_dim)
        if not _SMALLEST_NORM_EPS <= self.norm_eps <= 1.0:
            raise mismatch("norm_eps", f"{_SMALLEST_NORM_EPS:g} to 1", f"{self.norm_eps:g}")

    @property
    def group_size(self) -> int:
        """Return G, the query heads that share one key/value head: H / K."""
        return self.n_heads // (self.n_kv_heads or 1)

    def quantized(self) -> "ModelArgs":
        """Return them for weights quantized on loading: all activations have one dtype."""
        return replace(self, dtype=self.feed_forward_dtype or self.dtype, feed_forward_dtype=None)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by the letters of the legend."""
        of_heads = (self.n_heads, self.n_kv_heads, self.group_size, self.head_dim)
        sizes = (self.dim, *of_heads, self.ffn_dim, self.vocab_size, self.n_layers)
        return dict(zip("DHKGhFVL", sizes, strict=True))

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """Return the sizes of tensors that are known, by the letters of `checkpoint/names.py`."""
        Hh, Kh = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        known = {letter: size for letter, size in self.sizes.items() if letter in "DhFV"}
        return {letter: size for letter, size in (known | {"Hh": Hh, "Kh": Kh}).items() if size}

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by checkpoint key; an unknown size counts 0."""
        sizes, rows = self.tensor_sizes, rows_of(self.n_layers, self.parts)
        return {row.name: tuple(sizes.get(letter, 0) for letter in row.sizes) for row in rows}


def args_from_params(params: Mapping[str, object]) -> ModelArgs:
    """Read a `params.json` of checked keys; raise ModelConfigError where its parts contradict."""
    sizes = sizes_of(PARAMS_KEYS, params)
    scaled = value_of(params, "use_scaled_rope", False)
    factor = _KNOWN_SCALED_ROPE_FACTORS.get((sizes["dim"], sizes["n_layers"]), _SCALED_ROPE_FACTOR)
    # What the families were trained for: Llama 3.1 and 3.2; Llama 3, with its theta; Llama 2.
    longest = 131072 if scaled else 8192 if sizes["rope_theta"] >= 500000.0 else 4096
    sizes = {"max_context_length": longest} | sizes
    sizes["ffn_dim"] = feed_forward_dim(params) or 0
    sizes["vocab_size"] = max(sizes["vocab_size"], 0)  # Llama 2 says -1
    scaling = RopeScaling(factor) if scaled else None
    return ModelArgs(**sizes, rope_scaling=scaling, dtype=ml.bfloat16)


def feed_forward_dim(params: Mapping[str, object]) -> int | None:
    """Compute F as Meta does: 2/3 of 4 D, times the multiplier, rounded up to `multiple_of`.

    Without `multiple_of` it is None: only the tensors show it.
    """
    multiple_of = value_of(params, "multiple_of", 0)
    if not multiple_of:
        return None
    dim, multiplier = value_of(params, "dim", 0), value_of(params, "ffn_dim_multiplier", 1)
    hidden = int(multiplier * int(2 * (4 * dim) / 3))
    return multiple_of * -(-hidden // multiple_of)


def args_from_config(config: HuggingFaceConfig) -> ModelArgs:
    """Read a `config.json` of checked keys; raise ModelConfigError where its parts contradict.

    Where a key is absent, the default is that of the family in transformers, or here that of its
    `LlamaConfig`; the sizes have none, because a guessed size helps nobody.
    """
    given: Mapping[str, Any] = config.values
    kind = given["model_type"]
    sizes = sizes_of(CONFIG_KEYS, given, norm_eps=1e-6, max_context_length=2048)
    n_layers, positions = sizes["n_layers"], sizes["max_context_length"]
    window: int | None = value_of(given, "sliding_window", None) if kind == "mistral" else None
    every = value_of(given, "no_rope_layer_interval", n_layers + 1)
    parts = FAMILY_PARTS.get(kind, LLAMA_PARTS)
    biases = [*parts.biases]
    if value_of(given, "attention_bias", False) and not biases:
        biases += ("wq", "wk", "wv", "wo")
    if value_of(given, "mlp_bias", False):
        biases += ("w1", "w2", "w3")
    rotated = value_of(given, "no_rope_layers", [n % every for n in range(1, n_layers + 1)])
    named_dtype = value_of(given, "dtype", given.get("torch_dtype"))
    sizes["max_context_length"] = min(positions, window or positions)
    sizes["rope_theta"] = config.rope["rope_theta"]
    sizes |= {name: float(given[name]) for name in MULTIPLIERS if given.get(name)}
    return ModelArgs(
        **sizes,
        rope_scaling=_rope_scaling(config.rope),
        dtype=ml.float32 if named_dtype in ("float32", "float16") else ml.bfloat16,
        rope_pairs="halves",
        parts=replace(parts, biases=tuple(biases)),
        layers_without_rope=tuple(n for n, is_rotated in enumerate(rotated) if not is_rotated),
        sliding_window=window if window is not None and window < positions else None,
    )


def _rope_scaling(rope: Mapping[str, float]) -> RopeScaling | LinearRopeScaling | None:
    if "low_freq_factor" in rope:
        original = int(rope["original_max_position_embeddings"])
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        return RopeScaling(rope["factor"], low, high, original)
    return LinearRopeScaling(rope["factor"]) if "factor" in rope else None


def args_from_gguf(config: "GgufConfig", tensors: "Mapping[str, GgufTensor]") -> ModelArgs:
    """Read the checked keys of a GGUF file; raise ModelConfigError where its parts contradict.

    The tensors, by their names in the file, tell the biases and the dtype; no bytes are read.
    """
    from ..checkpoint.gguf_config import ARCHITECTURES, GRANITE_SCALES

    given: Mapping[str, Any] = config.given
    n_layers = config.sizes["n_layers"]
    parts = FAMILY_PARTS.get(config.architecture, LLAMA_PARTS)
    rows = rows_of(n_layers, replace(parts, biases=_MATRICES))
    known = {row.name: tensors[row.gguf] for row in rows if row.gguf in tensors}
    biases = tuple(m for m in _MATRICES if any(key.endswith(f".{m}.bias") for key in known))
    every = 4 if config.architecture == "smollm3" else n_layers + 1  # no key of the file says it
    dtypes = {key: tensor.dtype for key, tensor in known.items()}
    dtype, of_feed_forward = activation_dtype(dtypes), None
    if dtype is ml.bfloat16 and all(isinstance(each, ml.DType) for each in dtypes.values()):
        # llama.cpp keeps activations in float32 and rounds the inputs of all matrices to bfloat16.
        # To do so for the largest products alone keeps logits at least as close to float32.
        dtype, of_feed_forward = ml.float32, ml.bfloat16
    scales = {name: float(given[key]) for name, key in GRANITE_SCALES.items() if given.get(key)}
    sizes = {**config.sizes, **scales}
    if not sizes["vocab_size"] and EMBEDDINGS in known:
        sizes["vocab_size"] = known[EMBEDDINGS].shape[0]
    return ModelArgs(
        **sizes,
        rope_scaling=LinearRopeScaling(config.rope_factor) if config.rope_factor != 1.0 else None,
        dtype=dtype,
        feed_forward_dtype=of_feed_forward,
        rope_pairs=ARCHITECTURES[config.architecture],
        parts=replace(parts, biases=biases),
        layers_without_rope=tuple(range(every - 1, n_layers, every)),
    )


def with_rope_factor(args: ModelArgs, factor: float | None) -> ModelArgs:
    """Replace the factor of a scaled RoPE; None leaves it.

    Raise ModelConfigError where RoPE is not scaled by one, or the factor is out of its range.
    """
    if factor is None:
        return args
    if args.rope_scaling is None or isinstance(args.rope_scaling, RopeFactors):
        found = "one without" if args.rope_scaling is None else "a factor for each frequency"
        rule = "a model whose RoPE is scaled by one factor"
        raise mismatch("rope_scaling_factor", rule, found)
    if not 1.0 <= factor <= _LARGEST_ROPE_FACTOR:  # NaN is in no range
        raise mismatch("rope_scaling_factor", f"1 to {_LARGEST_ROPE_FACTOR:g}", f"{factor:g}")
    return replace(args, rope_scaling=replace(args.rope_scaling, factor=float(factor)))


def activation_dtype(dtypes: Mapping[str, ml.DType | ml.BlockDType]) -> ml.DType:
    """Return the dtype of the activations: the one in which products with the matrices run.

    All plain matrices must have the same dtype; but the embedding table may be bfloat16 beside
    8-bit floats, and bfloat16, float16 and float32 go together, with float32. Quantized matrices
    go with any, and where all are quantized it is bfloat16. Raise ModelConfigError otherwise, and
    for a vector whose dtype does not go with activations.
    """
    for name, each in dtypes.items():
        if each not in _VECTOR_DTYPES and not is_matrix(name) and not is_harmless(name):
            rule = f"one of {', '.join(map(str, _VECTOR_DTYPES))}"
            raise mismatch(f"tensor {name}", rule, each)
    matrices = {n: d for n, d in dtypes.items() if is_matrix(n) and isinstance(d, ml.DType)}
    embeddings = matrices.pop(EMBEDDINGS, None)
    found = set(matrices.values())
    beside_float8 = found and all(dtype.itemsize < ml.bfloat16.itemsize for dtype in found)
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
