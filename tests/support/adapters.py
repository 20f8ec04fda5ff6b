"""Write LoRA adapters of random matrices in each format, without peft, mlx or llama.cpp."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from src import ml
from src.checkpoint.gguf_writer import GgufWriter
from src.checkpoint.names import EMBEDDINGS, stored_rows
from src.model import ModelArgs
from tests.model.hugging_face_tiny import halves
from tests.model.tiny import uniform
from tests.support.safetensors_writer import write_safetensors

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RandomPair:
    """A [r, in] and B [out, r] of a matrix; for embeddings [r, V] and [D, r]."""

    a: Array
    b: Array


def random_pairs(
    args: ModelArgs, rank: int, seed: int = 1, modules: str = "", size: float = 0.5
) -> dict[str, RandomPair]:
    """Returns matrices by Hugging Face's names without `.weight`.

    `modules` are the last parts of the names, all of the layers by default.
    """
    sizes = args.tensor_sizes
    wanted = modules.split()
    pairs = {}
    rows = stored_rows(args.tensor_rows, "hugging_face")
    for number, (stored, row) in enumerate(rows.items()):
        name = stored.removesuffix(".weight")
        is_wanted = name.rpartition(".")[2] in wanted if wanted else "layers" in name
        if len(row.sizes) != 2 or not is_wanted:
            continue
        out = sum(sizes[letter] for letter in row.sizes[0].split("+"))
        columns = sizes[row.sizes[1]]
        if row.name == EMBEDDINGS:
            out, columns = columns, out
        a, b = (
            uniform(1000 * seed + 2 * number + which, int(np.prod(shape)))
            .reshape(shape)
            .astype(np.float32)
            for which, shape in enumerate(((rank, columns), (out, rank)))
        )
        # The change of a row is about `size` as large as the rows of weights.
        scale = np.sqrt(3 * size / np.sqrt(rank * columns), dtype=np.float32)
        pairs[name] = RandomPair(a * scale, b * scale)
    return pairs


def peft_config(
    rank: int, alpha: float, modules: Any, **changes: object
) -> dict[str, Any]:
    """Returns the content of adapter_config.json."""
    return {
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules,
        "bias": "none", "task_type": "CAUSAL_LM", "lora_dropout": 0.05,
    } | changes  # fmt: skip


def peft_arrays(pairs: Mapping[str, RandomPair]) -> dict[str, Array]:
    """Returns the tensors of adapter_model.safetensors."""
    arrays = {}
    for name, pair in pairs.items():
        is_table = name == "model.embed_tokens"
        first, second = (
            ("lora_embedding_A", "lora_embedding_B")
            if is_table
            else ("lora_A.weight", "lora_B.weight")
        )
        arrays[f"base_model.model.{name}.{first}"] = pair.a
        arrays[f"base_model.model.{name}.{second}"] = pair.b
    return arrays


def write_peft(
    directory: Path,
    pairs: Mapping[str, RandomPair],
    alpha: float = 8.0,
    **changes: object,
) -> Path:
    """Writes an adapter as peft does; `changes` are keys of adapter_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    rank = next(iter(pairs.values())).a.shape[0]
    modules = sorted({name.rpartition(".")[2] for name in pairs})
    config = peft_config(rank, alpha, modules, **changes)
    (directory / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    write_safetensors(directory / "adapter_model.safetensors", peft_arrays(pairs))
    return directory


def mlx_arrays(pairs: Mapping[str, RandomPair]) -> dict[str, Array]:
    """Returns the tensors of adapters.safetensors."""
    arrays = {}
    for name, pair in pairs.items():
        arrays[f"{name}.lora_a"] = np.ascontiguousarray(pair.a.T)
        arrays[f"{name}.lora_b"] = np.ascontiguousarray(pair.b.T)
    return arrays


def write_mlx(directory: Path, pairs: Mapping[str, RandomPair], scale: float) -> Path:
    """Writes an adapter as mlx-lm does."""
    directory.mkdir(parents=True, exist_ok=True)
    rank = next(iter(pairs.values())).a.shape[0]
    config = {
        "fine_tune_type": "lora", "num_layers": 4, "iters": 10, "model": "m",
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0},
    }  # fmt: skip
    (directory / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    write_safetensors(directory / "adapters.safetensors", mlx_arrays(pairs))
    return directory


def gguf_arrays(
    pairs: Mapping[str, RandomPair], args: ModelArgs, is_interleaved: bool
) -> dict[str, Array]:
    """Returns the tensors of a GGUF adapter, as convert_lora_to_gguf.py writes them."""
    rows = stored_rows(args.tensor_rows, "hugging_face")
    arrays = {}
    for name, pair in pairs.items():
        row = rows[f"{name}.weight"]
        a = pair.a
        b = pair.b
        if row.name == EMBEDDINGS:
            a = np.ascontiguousarray(a.T)
        if is_interleaved and row.name.endswith((".wq.weight", ".wk.weight")):
            half = args.head_dim // 2
            heads = b.reshape(-1, 2, half, b.shape[1])
            b = np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(b.shape)
            np.testing.assert_array_equal(halves(b, args.head_dim), pair.b)
        arrays[f"{row.gguf}.lora_a"] = a
        arrays[f"{row.gguf}.lora_b"] = b
    return arrays


def write_gguf(
    path: Path,
    arrays: Mapping[str, Array],
    alpha: float = 8.0,
    architecture: str = "llama",
    **changes: Any,
) -> Path:
    """Writes a GGUF adapter; `changes` are keys, with `_` for the dots of a name."""
    keys: dict[str, Any] = {
        "general.type": "adapter",
        "general.architecture": architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(alpha),
    }
    for name, value in changes.items():
        keys[name.replace("_", ".")] = value
    tensors: dict[str, ml.Weight] = {
        name: array
        if isinstance(array, ml.QuantizedTensor)
        else ml.Tensor.from_numpy(array)
        for name, array in arrays.items()
    }
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    with GgufWriter(path, keys, shapes) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
    return path
