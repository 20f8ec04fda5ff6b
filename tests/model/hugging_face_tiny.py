"""The tiny random Llamas in Hugging Face's layout: other names, and other rows of wq and
wk.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from src import ml
from src.checkpoint.names import rows_of
from tests.model.tiny import Tiny, Weights, weights
from tests.support.hugging_face_writer import write_hugging_face_directory

_TURNED = (".wq.weight", ".wk.weight", ".wq.bias", ".wk.bias")


def config_of(config: Tiny, **changes: object) -> dict[str, Any]:
    """Returns the content of config.json, as transformers 5 spells it."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.theta}
    if config.scaling:
        rope |= {
            "rope_type": "llama3", "factor": config.scaling, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        }  # fmt: skip
    return {
        "model_type": "llama",
        "vocab_size": config.vocab,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": 16384,
        "rms_norm_eps": config.eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tied,
        "eos_token_id": None,
    } | changes


def halves(weight: npt.NDArray[Any], head_dim: int) -> npt.NDArray[Any]:
    """Reorders rows: Meta pairs neighbours (2j, 2j + 1), Hugging Face pairs halves (j, j
    + h/2).
    """
    pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def renamed(config: Tiny, values: Weights) -> Weights:
    """Returns weights in Hugging Face's layout from those in Meta's."""
    names = {row.name: row.hugging_face for row in rows_of(config.layers)}
    return {
        names[name]: halves(weight, config.head_dim) if name.endswith(_TURNED) else weight
        for name, weight in values.items()
    }


def write_tiny(
    directory: Path,
    config: Tiny,
    dtype: ml.DType = ml.float32,
    *,
    shards: int = 1,
    generation: dict[str, Any] | None = None,
    **changes: object,
) -> Path:
    """Writes a tiny model in Hugging Face's layout; `changes` are keys of config.json."""
    arrays = {
        name: weight.astype(dtype.numpy_dtype)
        for name, weight in renamed(config, weights(config)).items()
    }
    return write_hugging_face_directory(
        directory,
        config_of(config, **changes),
        arrays,
        shards=shards,
        generation=generation,
    )
