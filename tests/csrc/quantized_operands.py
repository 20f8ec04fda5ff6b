"""Block-quantized operands, and what their elements are by NumPy alone."""

from typing import Any

import ml_dtypes
import numpy as np

from src import ml
from src.ml import NestedScales, QuantizedTensor

from .operands import Array, f32, normal, tensor

# How a weight is quantized: its dtype, and whether its scales are as well.
FORMATS = [(ml.nf4, False), (ml.nf4, True), (ml.int8_block, False)]
NF4_CODE = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip


def quantized(shape: tuple[int, ...], dtype: Any, double: bool, seed: int = 0) -> QuantizedTensor:
    """Quantize normal numbers."""
    return ml.quantize(tensor(normal(shape, f32, seed)), dtype, double)


def scales_of(weight: QuantizedTensor) -> Array:
    """Compute the scales of the blocks: float32."""
    scales, nested = weight.scales.numpy().reshape(-1), weight.nested
    if nested is None:
        return scales.astype(np.float32)
    absmax = np.repeat(nested.absmax.numpy().reshape(-1), 256)[: scales.size]
    return nested.code.numpy()[scales] * absmax + np.float32(nested.offset)


def elements(weight: QuantizedTensor, dtype: Any = f32) -> Array:
    """Compute the elements, each rounded once to float32 and once to the dtype."""
    codes = weight.codes.numpy().reshape(-1)
    if weight.dtype is ml.nf4:
        values = NF4_CODE[np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)[: weight.size]]
    else:
        values = codes.astype(np.float32)
    with np.errstate(all="ignore"):
        wide = values * np.repeat(scales_of(weight), weight.dtype.block_size)[: weight.size]
        return np.asarray(wide.reshape(weight.shape).astype(dtype))


def with_scales(weight: QuantizedTensor, scales: Array) -> QuantizedTensor:
    """Put other scales under the codes, from the first block on, over and over."""
    blocks = weight.scales.size
    given = np.resize(scales.astype(np.float32), blocks)
    if weight.nested is not None:
        nested = NestedScales(
            tensor(np.resize(given, weight.nested.absmax.size)), weight.nested.code, 0.0
        )
        return QuantizedTensor(ml.nf4, weight.shape, weight.codes, weight.scales, nested)
    kind = np.dtype(np.float32) if weight.dtype is ml.nf4 else np.dtype(ml_dtypes.bfloat16)
    return QuantizedTensor(weight.dtype, weight.shape, weight.codes, tensor(given.astype(kind)))
