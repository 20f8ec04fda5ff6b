"""The tensors that a quantised weight becomes in a file; `packed_weights.py` reads them back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np

from .. import ml
from .packed_weights import NF4_STATE
from .quantization_config import INT8_GROUP
from .safetensors_writer import NewTensor

__all__ = ["bytes_of", "new_tensors", "part_contents"]

_CODE_ENTRIES = 16


def new_tensors(
    name: str, shape: tuple[int, ...], dtype: ml.BlockDType, origin: ml.DType
) -> list[NewTensor]:
    """Describe the tensors of a weight before it is quantised.

    Args:
        name: of the weight in the file.
        shape: [out, in].
        dtype: what it becomes; for int8_block, `in` is a multiple of 32.
        origin: what it is.
    """
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
    name: str, weight: ml.QuantizedTensor, origin: ml.DType
) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield the name and the bytes of each tensor that `new_tensors` described.

    Args:
        name: of the weight in the file.
        weight: without nested scales.
        origin: what it was made of.
    """
    yield name, bytes_of(weight.codes)
    if weight.dtype is ml.int8_block:
        yield f"{name}_scale", bytes_of(weight.scales)
        return
    yield f"{name}.absmax", bytes_of(weight.scales)
    yield f"{name}.quant_map", bytes_of(ml.nf4_code())
    yield f"{name}{NF4_STATE}", _state(weight.shape, origin)


def bytes_of(tensor: ml.Tensor) -> memoryview:
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
