"""Hugging Face directories whose experts are quantized to MXFP4, as those of gpt-oss are."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from src.checkpoint.safetensors import read_safetensors
from tests.support.safetensors_writer import write_safetensors

LEVELS = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
}


def decoded(blocks: Any, scales: Any) -> Any:
    """Return the values of blocks [..., n, 16] with scales [..., n]: float32 [..., 32 n]."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1)
    values = LEVELS[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None, None]
    return values.reshape(*scales.shape[:-1], -1)


def pack_experts(directory: Path) -> dict[str, Any]:
    """Replace the matrices of experts by random MXFP4 matrices of the same shape.

    Returns the tensors [E, in, out] that they replace, by their names, in float32.
    """
    path = directory / "model.safetensors"
    tensors = {name: x.numpy().copy() for name, x in read_safetensors(path).items()}
    generator = np.random.default_rng(3)
    plain = {}
    for name in [name for name in tensors if name.endswith(("up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = experts, rows, columns // 32
        blocks = generator.integers(0, 256, (*shape, 16), dtype=np.uint8)
        scales = generator.integers(121, 124, shape, dtype=np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = np.ascontiguousarray(decoded(blocks, scales).swapaxes(1, 2))
    write_safetensors(path, tensors)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = CONFIG
    (directory / "config.json").write_text(json.dumps(config))
    return plain
