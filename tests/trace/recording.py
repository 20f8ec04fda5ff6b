"""What a trace wrote, read back, and a network whose sizes all differ."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from src import ml
from src.model import LlamaTransformer
from src.trace.records import Event, TensorInfo
from tests.model.tiny import GROUPED, uniform

# T 22 or 4, S 22 or 26, D 20, H 12, K 3, h 10, H*h 120, K*h 30, h/2 5, F 50, V 131: a
# letter that stands for the wrong dimension shows.
_HEADS = {"n_heads": 12, "n_kv_heads": 3, "head_dim": 10}
_SIZES = {"dim": 20, "ffn_dim": 50, "vocab_size": 131}
DIFFERENT = replace(GROUPED.args(ml.bfloat16, 64), **_HEADS, **_SIZES)


def different_transformer() -> LlamaTransformer:
    """Returns a random network of the sizes `DIFFERENT`."""
    tensors = {}
    for seed, (name, shape) in enumerate(DIFFERENT.tensor_shapes.items(), 1):
        values = uniform(seed, int(np.prod(shape))).reshape(shape)
        tensors[name] = ml.Tensor.from_numpy(values.astype(ml_dtypes.bfloat16), name=name)
    return LlamaTransformer(DIFFERENT, tensors)


def read_trace(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """Returns what JSON lines hold: the record of the run, and the events."""

    def tensors(records: list[dict[str, Any]]) -> tuple[TensorInfo, ...]:
        both = ("shape", "letters")
        return tuple(
            TensorInfo(**one | {k: tuple(one[k]) for k in both}) for one in records
        )

    head, *records = map(json.loads, path.read_text("ascii").splitlines())
    both = ("inputs", "outputs")
    return head, [Event(**one | {k: tensors(one[k]) for k in both}) for one in records]


def source_files() -> list[Path]:
    """Returns the modules of the package."""
    return sorted((Path(__file__).resolve().parents[2] / "src").rglob("*.py"))


def event_lines(lines: list[str]) -> list[str]:
    """Returns the lines of the ops, with what each was made of, and of what sums up the
    layers.
    """
    found: list[str] = []
    for line in lines[lines.index("") :]:
        if line.startswith("        ") and found:
            found[-1] += f" {line.strip()}"
        elif line and not line.startswith("#"):
            found.append(line)
    return found
