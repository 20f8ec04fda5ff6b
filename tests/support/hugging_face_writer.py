"""Write model directories in Hugging Face's layout, without transformers: of any size, or
bad.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.pth_writer import LazyArray, random_tensor
from tests.support.safetensors_writer import write_safetensors, write_sharded

# As transformers 5 writes it; all sizes differ from each other.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 6,
    "hidden_act": "silu",
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "transformers_version": "5.23.0",
    "use_cache": True,
    "vocab_size": 40,
}


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Give the shape of each tensor of a configuration, by Hugging Face's names."""
    D = config["hidden_size"]
    F = config["intermediate_size"]
    V = config["vocab_size"]
    heads = config["num_attention_heads"]
    h = config.get("head_dim") or D // heads
    Hh = heads * h
    Kh = (config.get("num_key_value_heads") or heads) * h
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, D)}
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        matrices = {
            "self_attn.q_proj": (Hh, D),
            "self_attn.k_proj": (Kh, D),
            "self_attn.v_proj": (Kh, D),
            "self_attn.o_proj": (D, Hh),
            "mlp.gate_proj": (F, D),
            "mlp.up_proj": (F, D),
            "mlp.down_proj": (D, F),
        }
        shapes |= {f"{start}{name}.weight": shape for name, shape in matrices.items()}
        for kind, key in (("self_attn", "attention_bias"), ("mlp", "mlp_bias")):
            if config.get(key):
                names = [name for name in matrices if name.startswith(kind)]
                shapes |= {f"{start}{name}.bias": matrices[name][:1] for name in names}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{start}{name}.weight"] = (D,)
    shapes["model.norm.weight"] = (D,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (V, D)
    return shapes


def random_arrays(
    config: Mapping[str, Any], dtype: Any = ml_dtypes.bfloat16, seed: int = 0
) -> dict[str, LazyArray]:
    """Describe random tensors of all names of a configuration."""
    return {
        name: random_tensor(name, shape, np.dtype(dtype), seed)
        for name, shape in tensor_shapes(config).items()
    }


def zero_arrays(
    config: Mapping[str, Any], dtype: Any = ml_dtypes.bfloat16
) -> dict[str, LazyArray]:
    """Describe tensors of zeros of all names of a configuration, which cost neither disk
    nor time.

    Vectors are ones, so that norms let through what there is.
    """
    block = np.zeros(1 << 22, dtype)

    def chunks(shape: tuple[int, ...]) -> Iterator["np.ndarray[Any, Any]"]:
        if len(shape) == 1:
            yield np.ones(shape, dtype)
            return
        left = int(np.prod(shape))
        while left:
            yield block[: min(left, block.size)]
            left -= min(left, block.size)

    return {
        name: LazyArray(shape, np.dtype(dtype), functools.partial(chunks, shape))
        for name, shape in tensor_shapes(config).items()
    }


def write_hugging_face_directory(
    directory: Path,
    config: Mapping[str, Any],
    arrays: Mapping[str, "np.ndarray[Any, Any] | LazyArray"],
    *,
    shards: int = 1,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """Write the configuration files and the weights, by Hugging Face's names; return the
    directory.

    From two shards on there is an index.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(config), indent=2))
    if generation is not None:
        (directory / "generation_config.json").write_text(
            json.dumps(dict(generation), indent=2)
        )
    if shards == 1:
        write_safetensors(directory / "model.safetensors", arrays, {"format": "pt"})
    else:
        write_sharded(directory, arrays, shards)
    return directory
