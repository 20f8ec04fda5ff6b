"""Tiny random models of the families next to Llama, as directories in Hugging Face's
layout.
"""

from pathlib import Path
from typing import Any

import numpy as np

from src import ml
from src.checkpoint.names import stored_rows
from src.model import ModelArgs
from src.model.sources import find_source
from tests.model.tiny import uniform
from tests.support.hugging_face_writer import write_hugging_face_directory

# The sizes of `tests.trace.recording.DIFFERENT`: a letter of the wrong dimension shows.
_SIZES = {
    "hidden_size": 20,
    "num_attention_heads": 12,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "intermediate_size": 50,
    "vocab_size": 131,
    "num_hidden_layers": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "eos_token_id": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 16},
    "qwen3": {"model_type": "qwen3", "layer_types": ["full_attention"] * 4},
    "smollm3": {
        "model_type": "smollm3",
        "pad_token_id": None,
        "tie_word_embeddings": True,
    },
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.5,
    },
    "granite_swa": {
        "model_type": "granite_swa",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.5,
        "sliding_window": 8,
        "layer_rope_theta": [10000, 0, 10000, 10000],
        "tie_word_embeddings": True,
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 8,
        "rope_theta": 500000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 12,
        },
    },
    "ministral3": {
        "model_type": "ministral3",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 10,
            "beta_fast": 16.0,
            "beta_slow": 0.5,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "llama_4_scaling_beta": 0.25,
        },
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": None,  # the same as intermediate_size
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
    "mixtral": {
        "model_type": "mixtral",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
    },
    "olmoe": {
        "model_type": "olmoe",
        "num_experts": 7,
        "num_experts_per_tok": 4,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.5,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 8,
        # The transition of YaRN, from below 0 to above the last index, has whole indices
        # in llama.cpp too, which truncates them.
        "rope_scaling": {
            "rope_type": "yarn",
            "rope_theta": 5.0,
            "factor": 16.0,
            "original_max_position_embeddings": 200,
            "truncate": False,
        },
    },
    "gemma2": {
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 9,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 7,
        "sliding_window_pattern": 6,
        "num_hidden_layers": 7,
        "tie_word_embeddings": True,
    },
}
# Families whose GGUF files are limited to the window.
LIMITED: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral", "sliding_window": 11},
    "ministral": {
        "model_type": "ministral",
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}
# Rows of whole blocks of each format.
WITH_EXPERTS = ("qwen3_moe", "mixtral", "olmoe", "granitemoe", "gpt_oss")
EVEN_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 6,
}  # fmt: skip


def config_of(family: str, **changes: object) -> dict[str, Any]:
    """Returns the content of config.json."""
    config = _SIZES | (CONFIGS | LIMITED)[family] | changes
    if config.get("moe_intermediate_size", 1) is None:
        config["moe_intermediate_size"] = config["intermediate_size"]
    if family == "olmoe":  # GGUF files have as many key/value heads as query heads
        config["num_key_value_heads"] = config["num_attention_heads"]
    if family.startswith("gemma"):  # GGUF files imply the head dimension
        config.setdefault("query_pre_attn_scalar", config.get("head_dim"))
    return config


def write_family(
    directory: Path, family: str, dtype: ml.DType = ml.bfloat16, **changes: object
) -> Path:
    """Writes a random model; `changes` are keys of config.json."""
    directory.mkdir(exist_ok=True)
    config = config_of(family, **changes)
    write_hugging_face_directory(directory, config, {})
    args = find_source(directory).args
    arrays = random_arrays(args, dtype, tied="tie_word_embeddings" in config)
    return write_hugging_face_directory(directory, config, arrays)


def random_arrays(
    args: ModelArgs, dtype: ml.DType, tied: bool
) -> "dict[str, np.ndarray[Any, Any]]":
    """Returns weights, as large as those of `tests.model.tiny`,
    by Hugging Face's names.
    """
    shapes = args.stored_shapes("hugging_face")
    arrays = {}
    rows = stored_rows(args.tensor_rows, "hugging_face")
    for number, (name, row) in enumerate(rows.items()):
        ours = row.name
        if tied and ours == "output.weight":
            continue
        values = uniform(number, int(np.prod(shapes[ours]))).reshape(shapes[ours])
        if "norm" in name:
            values = 1 - args.norm_offset + 0.4 * values
        elif "embed" in name:
            values = 0.8 * values
        elif values.ndim >= 2:
            values = 2 * values / np.sqrt(values.shape[-1])
        arrays[name] = values.astype(dtype.numpy_dtype)
    return arrays
