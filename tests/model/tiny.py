"""Tiny random Llamas: their sizes, and weights that are the same on every machine for
ever.

All sizes of a config differ from each other where they can, so that a swapped dimension
shows.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from src import ml
from src.model import LlamaTransformer, ModelArgs, RopeScaling
from tests.support.pth_writer import write_pth

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Tiny:
    """Sizes of one random model; `scaling` is the factor of its scaled RoPE,
    0 for none.
    """

    name: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    theta: float = 10000.0
    scaling: float = 0.0
    eps: float = 1e-5
    tied: bool = False

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def args(
        self, dtype: ml.DType = ml.float32, max_context_length: int = 4096
    ) -> ModelArgs:
        scaling = RopeScaling(self.scaling) if self.scaling else None
        return ModelArgs(
            dim=self.dim,
            n_layers=self.layers,
            n_heads=self.heads,
            n_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn_dim=self.ffn,
            vocab_size=self.vocab,
            norm_eps=self.eps,
            rope_theta=self.theta,
            rope_scaling=scaling,
            max_context_length=max_context_length,
            dtype=dtype,
        )

    def params(self) -> dict[str, object]:
        """Returns params.json; without multiple_of, so that the tensors say F."""
        params: dict[str, object] = {
            "dim": self.dim, "n_layers": self.layers, "n_heads": self.heads,
            "n_kv_heads": self.kv_heads, "vocab_size": self.vocab, "norm_eps": self.eps,
            "rope_theta": self.theta,
        }  # fmt: skip
        if self.scaling:
            params["use_scaled_rope"] = True
        return params


CONFIGS = (
    Tiny("multi_head", 32, 2, 4, 4, 48, 131),
    Tiny("grouped", 64, 2, 8, 2, 90, 101),
    Tiny("one_kv_head", 48, 3, 6, 1, 70, 113),
    Tiny("scaled_by_8", 64, 2, 4, 2, 96, 127, theta=500000.0, scaling=8.0),
    Tiny("scaled_by_32", 80, 2, 5, 1, 84, 137, theta=500000.0, scaling=32.0),
    Tiny("head_dim_6", 24, 2, 4, 2, 37, 131),
    Tiny("head_dim_10", 60, 2, 6, 3, 77, 97),
    Tiny("tied", 40, 2, 4, 2, 56, 149, tied=True),
    Tiny("head_dim_64", 128, 2, 2, 1, 150, 139, theta=500000.0),
    Tiny("three_heads", 36, 2, 3, 3, 100, 259),
    Tiny("one_head", 16, 2, 1, 1, 44, 67),
    Tiny("deep", 40, 6, 4, 2, 54, 109, eps=1e-6),
    Tiny("twelve_heads", 96, 2, 12, 4, 130, 103, theta=1000000.0),
    Tiny("head_dim_128", 256, 1, 2, 1, 300, 151, theta=500000.0, scaling=8.0),
)
GROUPED = CONFIGS[1]
TIED = CONFIGS[7]
BYTES_VOCAB = replace(GROUPED, name="bytes_vocab", vocab=512, scaling=8.0)


def shapes(config: Tiny) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields (checkpoint key, shape) of each weight."""
    D = config.dim
    F = config.ffn
    V = config.vocab
    K_h = config.kv_heads * config.head_dim
    yield "tok_embeddings.weight", (V, D)
    for layer in range(config.layers):
        for name, shape in (
            ("attention_norm", (D,)),
            ("attention.wq", (D, D)),
            ("attention.wk", (K_h, D)),
            ("attention.wv", (K_h, D)),
            ("attention.wo", (D, D)),
            ("ffn_norm", (D,)),
            ("feed_forward.w1", (F, D)),
            ("feed_forward.w2", (D, F)),
            ("feed_forward.w3", (F, D)),
        ):
            yield f"layers.{layer}.{name}.weight", shape
    yield "norm.weight", (D,)
    if not config.tied:
        yield "output.weight", (V, D)


def uniform(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Returns numbers from -1 to 1 by splitmix64: no library version changes them."""
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        start = np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        z = start + golden * np.arange(1, count + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * (2.0 / (1 << 53)) - 1.0


def weights(config: Tiny, seed: int = 1) -> Weights:
    """Returns float32 weights large enough that attention looks around and logits
    spread.
    """
    result: Weights = {}
    for number, (name, shape) in enumerate(shapes(config)):
        values = uniform(1000 * seed + number, int(np.prod(shape)))
        if len(shape) == 1:
            values = 1.0 + 0.4 * values
        elif name == "tok_embeddings.weight":
            values = values * (0.35 if config.tied else 1.5)
        else:
            # Scores spread by 1.3 and logits by 3: attention chooses, and is not a mere
            # argmax.
            gain = 5.0 if name == "output.weight" else 2.0
            values = values * gain / np.sqrt(shape[1])
        result[name] = values.astype(np.float32).reshape(shape)
    return result


def rounded(weights: Weights) -> Weights:
    """Returns the float32 values of the weights rounded to bfloat16."""
    return {
        n: w.astype(ml_dtypes.bfloat16).astype(np.float32) for n, w in weights.items()
    }


def transformer(
    config: Tiny,
    dtype: ml.DType = ml.float32,
    seed: int = 1,
    max_context_length: int = 4096,
) -> LlamaTransformer:
    """Builds a model in memory with weights of a dtype."""
    tensors = {
        name: ml.Tensor.from_numpy(weight.astype(dtype.numpy_dtype), name=name)
        for name, weight in weights(config, seed).items()
    }
    activations = ml.bfloat16 if dtype is ml.bfloat16 else ml.float32
    return LlamaTransformer(config.args(activations, max_context_length), tensors)


def token_ids(config: Tiny, count: int, seed: int = 7) -> list[int]:
    """Returns token ids all over the vocabulary."""
    scaled = (uniform(seed, count) + 1.0) * (config.vocab / 2)
    return [min(int(value), config.vocab - 1) for value in scaled]


def write_meta_directory(
    directory: Path,
    config: Tiny,
    dtype: ml.DType = ml.float32,
    tokenizer: bool = False,
    seed: int = 1,
) -> Path:
    """Writes a model in Meta's layout; its tokenizer has one token per byte and 256
    special ids.
    """
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {n: w.astype(dtype.numpy_dtype) for n, w in weights(config, seed).items()}
    write_pth(directory / "consolidated.00.pth", arrays)
    (directory / "params.json").write_text(json.dumps(config.params()), encoding="ascii")
    if tokenizer:
        write_byte_tokenizer(directory / "tokenizer.model")
    return directory


def write_byte_tokenizer(path: Path) -> None:
    """Writes a tokenizer whose id 0..255 is a byte; the special ids are 256..511."""
    lines = [f"{base64.b64encode(bytes([n])).decode()} {n}\n" for n in range(256)]
    path.write_text("".join(lines), encoding="ascii")
