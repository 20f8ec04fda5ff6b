"""Write a tiny random mixture of experts: `python -m tools.tiny_experts DIR`.

The model has the layout and the keys of Qwen3-30B-A3B, with 2 layers and 8 experts of
which a token uses 2. It has no tokenizer. The same numbers are written each time, so that
the examples of the chapters can print them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from src import ml
from src.checkpoint.model_directory import CONFIG_FILE, SINGLE
from src.checkpoint.safetensors_writer import (
    TensorWriter,
    new_tensors,
    safetensors_head,
)
from src.model import find_source

CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}


def write_tiny_experts(directory: Path) -> Path:
    """Write the model to a new directory, and return the directory."""
    directory.mkdir()
    (directory / CONFIG_FILE).write_text(json.dumps(CONFIG, indent=2) + "\n")
    (directory / SINGLE).touch()
    args = find_source(directory).args
    (directory / SINGLE).unlink()
    shapes = args.tensor_shapes
    tensors = {row.hugging_face: shapes[row.name] for row in args.tensor_rows}
    entries = [
        entry
        for name, shape in tensors.items()
        for entry in new_tensors(name, shape, None, ml.float32)
    ]
    generator = np.random.default_rng(1)
    with TensorWriter(
        directory / SINGLE, *safetensors_head(entries, {"format": "pt"})
    ) as writer:
        for name, shape in tensors.items():
            values: np.ndarray[Any, Any] = 2 * generator.random(shape, np.float32) - 1
            if "norm" in name:
                values = 1 + values / 4
            elif "embed" not in name:
                values *= 2 / np.sqrt(np.float32(shape[-1]))
            writer.write(name, ml.Tensor.from_numpy(values))
    return directory


if __name__ == "__main__":
    write_tiny_experts(Path(sys.argv[1]))
