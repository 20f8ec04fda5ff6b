"""The tensors that a weight becomes in a Hugging Face file, rows in the order that they have there.

`packed_weights.py` reads those of quantized weights back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np

from .. import ml
from .packed_weights import NF4_STATE
from .quantization_config import INT8_GROUP
from .safetensors import DTYPES
from .safetensors_writer import NewTensor

__all__ = ["in_halves", "new_tensors", "part_contents"]

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_CODE_ENTRIES = 16


def new_tensors(
    name: str, shape: tuple[int, ...], dtype: ml.BlockDType | None, origin: ml.DType
) -> list[NewTensor]:
    """Describe the tensors of a weight before it is quantized.

    Args:
        name: of the weight in the file.
        shape: [out, in], or any of a weight that stays plain.
        dtype: what it becomes, or None; for int8_block, `in` is a multiple of 32.
        origin: what it is.
    """
    if dtype is None:
        return [NewTensor(name, _DTYPE_NAMES[origin], shape)]
    size = math.prod(shape)
    blocks = -(-size // dtype.block_size)
    if dtype is ml.int8_block:
        groups = (shape[0], shape[1] // INT8_GROUP)
        return [NewTensor(name, "I8", shape), NewTensor(f"{name}_scale", "BF16", groups)]
    return [
        NewTensor(name, "U8", (-(-size // dtype.codes_per_item), 1)),
        NewTensor(f"{name}.absmax", "F32", (blocks,)),
        NewTensor(f"{name}.quant_map", "F32", (_CODE_ENTRIES,)),
        NewTensor(f"{name}{NF4_STATE}", "U8", (len(_state(shape, origin)),)),
    ]


def part_contents(
    name: str, weight: ml.Weight, origin: ml.DType
) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield the name and the bytes of each tensor that `new_tensors` described.

    Args:
        name: of the weight in the file.
        weight: plain, or quantized without nested scales.
        origin: what it was made of.
    """
    if isinstance(weight, ml.Tensor):
        yield name, _bytes_of(weight)
        return
    yield name, _bytes_of(weight.codes)
    if weight.dtype is ml.int8_block:
        yield f"{name}_scale", _bytes_of(weight.scales)
        return
    yield f"{name}.absmax", _bytes_of(weight.scales)
    yield f"{name}.quant_map", _bytes_of(ml.nf4_code())
    yield f"{name}{NF4_STATE}", _state(weight.shape, origin)


def in_halves(weight: ml.Tensor, head_dim: int) -> ml.Tensor:
    """Put the even rows of each head before the odd ones: from Meta's pairs to halves."""
    rows = weight.numpy()
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    halves = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
    return ml.Tensor.from_numpy(halves, name=weight.name)


def _bytes_of(tensor: ml.Tensor) -> memoryview:
    """Return the bytes of a tensor where they lie, or of a contiguous copy."""
    return tensor.contiguous().bits().reshape(-1).view(np.uint8).data


def _state(shape: tuple[int, ...], origin: ml.DType) -> bytes:
    state = {
        "quant_type": "nf4",
        "blocksize": ml.nf4.block_size,
        "dtype": origin.name,
        "shape": list(shape),
    }
    return json.dumps(state).encode("ascii")
