"""Block-quantized operands, and by NumPy alone their elements and products,
bit for bit.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.ml import NestedScales, QuantizedTensor

from .ggml_operands import HALF, READERS, Read, blocks_of
from .operands import Array, bf16, f32, normal, tensor

# How a weight is quantized: its dtype, and whether its scales are as well.
FORMATS = [(ml.nf4, False), (ml.nf4, True), (ml.int8_block, False)]
GGML_FORMATS = [(dtype, False) for dtype in ml.GGML_DTYPES.values()]
EVERY_FORMAT = [*FORMATS, *GGML_FORMATS]
# The same for activations of 8 bits: what `quantized` takes.
INT8_FORMATS = [(*kind, "int8") for kind in EVERY_FORMAT]
Format = tuple[Any, ...]


def name_of_format(kind: Format) -> str:
    dtype, double, *activations = kind
    return "-".join([str(dtype), *["double"] * double, *activations])


every_format = pytest.mark.parametrize("kind", EVERY_FORMAT, ids=name_of_format)
every_product = pytest.mark.parametrize(
    "kind", [*EVERY_FORMAT, *INT8_FORMATS], ids=name_of_format
)
NF4_CODE = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
NF4_STEPS = 2048  # of an nf4 code that is a whole absmax
BLOCK = 32
LANES = 16


def is_ggml(kind: Any) -> bool:
    """Tell a format of GGUF files, whose rows are whole blocks."""
    return isinstance(kind, ml.BlockDType) and kind.bytes_with_scales > 0


def whole_blocks(kind: Any, columns: int) -> int:
    """Return the next number of columns that rows of a dtype or format can have."""
    size = kind.block_size if is_ggml(kind) else 1
    return -(-columns // size) * size


def quantized(
    shape: tuple[int, ...],
    dtype: Any,
    double: bool,
    activations: str = "int16",
    seed: int = 0,
) -> QuantizedTensor:
    """Quantize normal numbers; in a format of GGUF files, take any codes."""
    if not is_ggml(dtype):
        weight = ml.quantize(tensor(normal(shape, f32, seed)), dtype, double)
        return weight.with_activations(activations)
    values = np.random.default_rng(seed).standard_normal(1009)
    blocks = tensor(blocks_of(dtype, math.prod(shape), values, seed))
    return QuantizedTensor(dtype, shape, blocks, activations=activations)


def operands(shape: tuple[int, int, int], x_dtype: Any, kind: Any) -> tuple[Array, Any]:
    """Draw x [T, in] and a weight [out, in] of a dtype or format, in whole blocks if it
    needs them.

    The shape is T, in, out.
    """
    T, columns, rows = shape
    if not isinstance(kind, tuple):
        return normal((T, columns), x_dtype), normal((rows, columns), kind, seed=1)
    columns = whole_blocks(kind[0], columns)
    return normal((T, columns), x_dtype), quantized((rows, columns), *kind, seed=1)


def with_scales(weight: QuantizedTensor, scales: Array) -> QuantizedTensor:
    """Put other scales under the codes, from the first block on, over and over."""
    codes = weight.codes
    parts: tuple[Any, ...] = ()
    if is_ggml(weight.dtype):
        codes = tensor(blocks_of(weight.dtype, weight.size, scales))
    elif weight.nested is not None:
        absmax = np.resize(scales.astype(np.float32), weight.nested.absmax.size)
        nested = NestedScales(tensor(absmax), weight.nested.code, 0.0)
        parts = weight.scales, nested
    else:
        given = np.resize(scales.astype(np.float32), weight.scales.size)
        is_nf4 = weight.dtype is ml.nf4
        kind = np.dtype(np.float32) if is_nf4 else np.dtype(ml_dtypes.bfloat16)
        parts = (tensor(given.astype(kind)),)
    changed = QuantizedTensor(weight.dtype, weight.shape, codes, *parts)
    return changed.with_activations(weight.activations)


def scales_of(weight: QuantizedTensor) -> Array:
    """Compute the scales of the blocks of nf4 or int8: float32."""
    scales = weight.scales.numpy().reshape(-1)
    nested = weight.nested
    if nested is None:
        return scales.astype(np.float32)
    absmax = np.repeat(nested.absmax.numpy().reshape(-1), 256)[: scales.size]
    return nested.code.numpy()[scales] * absmax + np.float32(nested.offset)


def nf4_levels(weight: QuantizedTensor, levels: Array) -> Array:
    """Return the level of each code, the upper one of a byte first."""
    codes = weight.codes.numpy().reshape(-1)
    return levels[np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)]


def parts_of(weight: QuantizedTensor) -> Read:
    """Take a weight of whole blocks apart: element = code * scale + minimum.

    Returns:
        codes, int64 [n, 16], of which two make a group; scales [n or n / 2] and minima or
        None, of each half of a group or of each group.
    """
    if is_ggml(weight.dtype):
        codes, scales, mins = READERS[weight.dtype.name](
            weight.codes.numpy().reshape(-1, weight.dtype.block_bytes)
        )
        repeats = max(1, weight.dtype.block_size // BLOCK // scales.shape[1])
        scales = np.repeat(scales, repeats, axis=1).reshape(-1)
        mins = None if mins is None else np.repeat(mins, repeats, axis=1).reshape(-1)
    elif weight.dtype is ml.nf4:  # integers in steps of 2^-11 absmax
        steps = np.rint(NF4_CODE.astype(np.float64) * NF4_STEPS)
        codes = nf4_levels(weight, steps)
        mins = None
        scales = np.repeat(scales_of(weight) / np.float32(NF4_STEPS), 2)
    else:
        codes = weight.codes.numpy()
        scales = scales_of(weight)
        mins = None
    return codes.reshape(-1, HALF).astype(np.int64), scales, mins


def elements(weight: QuantizedTensor, dtype: Any = f32) -> Array:
    """Compute the elements, each operation rounded to float32, and then to the dtype."""
    with np.errstate(all="ignore"):
        if is_ggml(weight.dtype):
            codes, scales, mins = parts_of(weight)
            wide = codes.reshape(len(scales), -1).astype(f32) * scales[:, None]
            wide = wide if mins is None else wide + mins[:, None]
        else:
            is_nf4 = weight.dtype is ml.nf4
            codes = (
                nf4_levels(weight, NF4_CODE)
                if is_nf4
                else weight.codes.numpy().astype(f32)
            )
            scales = np.repeat(scales_of(weight), weight.dtype.block_size)
            wide = codes.reshape(-1)[: weight.size] * scales[: weight.size]
        return np.asarray(wide.reshape(weight.shape).astype(dtype))


# ---- products by integers --------------------------------------------------------------


def by_integers(x: Array, weight: QuantizedTensor) -> bool:
    """Tell whether a product is made by integers: bfloat16 x, rows of whole blocks."""
    return x.dtype == bf16 and x.shape[-1] % weight.dtype.block_size == 0


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Compute a * b + c of float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there, by its exact error,
    so that rounding it again to float32 is as good as once (S. Boldo, G. Melquiond,
    2008).
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    words = total.view(np.int64)
    inexact = np.isfinite(error) & (error != 0) & (words % 2 == 0)
    away = (error > 0) == (total > 0)
    odd = words + np.where(inexact, np.where(away, 1, -1), 0)
    return odd.view(np.float64).astype(np.float32)


def integers_of(x: Array, activations: str) -> tuple[Array, Array]:
    """Turn rows of bfloat16 into integers, int64 [T, groups, 32], and scales, float32 [T,
    groups].
    """
    return bytes_of(x) if activations == "int8" else words_of(x)


def bytes_of(x: Array) -> tuple[Array, Array]:
    """Turn rows into integers of 8 bits.

    The scale is the largest magnitude in float32 divided by n, 0 where a 127th of it
    would be subnormal, and NaN where an element is not finite. An integer is an element
    times n / that magnitude, rounded twice. n is 126 or 127 for each group, whichever
    gives the smaller sum of squared errors.
    """
    groups = x.astype(np.float32).reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    largest = np.abs(groups).max(axis=-1)
    counts = np.isfinite(largest) & (largest >= np.float32(127 * 2.0**-126))
    numbers = scales = least = None
    for n in np.array([127, 126, 125], np.float32):
        factors = np.where(counts, n / largest, np.float32(0))
        exact = np.nan_to_num(groups * factors[..., None])
        rounded = np.rint(exact)
        squares = (exact - rounded) ** 2
        lanes = squares[..., 0::2] + squares[..., 1::2]
        while lanes.shape[-1] > 1:
            half = lanes.shape[-1] // 2
            lanes = lanes[..., :half] + lanes[..., half:]
        errors = lanes[..., 0] / (n * n)
        scale = np.where(counts, largest / n, np.float32(0))
        if numbers is None:
            numbers, scales, least = rounded, scale, errors
            continue
        is_better = errors < least
        numbers = np.where(is_better[..., None], rounded, numbers)
        scales = np.where(is_better, scale, scales)
        least = np.where(is_better, errors, least)
    scales[~np.isfinite(largest)] = np.nan
    assert np.abs(numbers).max(initial=0) <= 127
    return numbers.astype(np.int64), scales


def words_of(x: Array) -> tuple[Array, Array]:
    """Turn rows into integers of 16 bits.

    The largest element of a group is m * 2^e with 1 <= m < 2; the scale is 2^(e - 14), at
    least 2^-126, and NaN where an element is not finite.
    """
    groups = x.astype(np.float64).reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    largest = np.abs(groups).max(axis=-1)
    exponents = np.frexp(largest)[1] - 1
    scales = np.where(
        np.isfinite(largest), 2.0 ** np.maximum(exponents - 14, -126), np.nan
    )
    numbers = np.rint(np.nan_to_num(groups / scales[..., None])).astype(np.int64)
    return numbers, scales.astype(np.float32)


def integer_products(x: Array, weight: QuantizedTensor) -> Array:
    """Compute bfloat16 x [T, in] times weight [out, in]: float32 [T, out], bit for bit.

    lane[g mod 16] = fma(float32(sum of codes * numbers), scale * x scale, the same), of
    group g or of its halves one after the other; then with minima, and sums of numbers.
    """
    rows = weight.shape[0]
    with np.errstate(all="ignore"):
        codes, scales, mins = parts_of(weight)
        numbers, x_scales = integers_of(x, weight.activations)
        groups = numbers.shape[1]
        parts = 2 if len(scales) == len(codes) else 1  # of a group
        numbers = numbers.reshape(len(x), groups, parts, BLOCK // parts)
        sums = np.einsum(
            "tgpi,ogpi->gpto", numbers, codes.reshape(rows, groups, parts, BLOCK // parts)
        )
        assert np.abs(sums).max(initial=0) < 2**31
        steps = [(sums, scales.reshape(rows, groups, parts))]
        if mins is not None:
            x_sums = np.broadcast_to(
                numbers.sum(-1).transpose(1, 2, 0)[..., None], sums.shape
            )
            steps.append((x_sums, mins.reshape(rows, groups, parts)))
        lanes = np.zeros((LANES, len(x), rows), np.float32)
        for g in range(groups):
            lane = lanes[g % LANES]
            for totals, factors in steps:
                for part, total in enumerate(totals[g]):
                    factor = factors[None, :, g, part] * x_scales[:, g, None]
                    lane = fused_multiply_add(total.astype(np.float32), factor, lane)
            lanes[g % LANES] = lane
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]
