"""Products of bfloat16 with int8 and nf4 weights as integers make them, by NumPy alone."""

import numpy as np

from src import ml
from src.ml import QuantizedTensor

from .operands import Array, bf16
from .quantized_operands import NF4_CODE, scales_of

BLOCK = 32
LANES = 16
NF4_STEPS = 2048  # of an nf4 code that is a whole absmax


def by_integers(x: Array, weight: QuantizedTensor) -> bool:
    """Tell whether a product is made by integers: bfloat16 x, rows of whole blocks."""
    return x.dtype == bf16 and x.shape[-1] % weight.dtype.block_size == 0


def codes_and_scales(weight: QuantizedTensor) -> tuple[Array, Array]:
    """Return a weight's integers [out, blocks, 32] and what they are multiplied by [out, blocks].

    nf4 codes are integers in steps of 2^-11 absmax.
    """
    codes, scales = weight.codes.numpy(), scales_of(weight)
    if weight.dtype is ml.nf4:
        steps = np.rint(NF4_CODE.astype(np.float64) * NF4_STEPS)
        codes = steps[np.stack([codes >> 4, codes & 15], axis=-1)]
        scales = np.repeat(scales / np.float32(NF4_STEPS), 2)
    rows = weight.shape[0]
    return codes.reshape(rows, -1, BLOCK).astype(np.int64), scales.reshape(rows, -1)


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Compute a * b + c of float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there, by its exact error, so that
    rounding it again to float32 is as good as once (S. Boldo, G. Melquiond, 2008).
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    words = total.view(np.int64)
    inexact = np.isfinite(error) & (error != 0) & (words % 2 == 0)
    away = (error > 0) == (total > 0)
    odd = words + np.where(inexact, np.where(away, 1, -1), 0)
    return odd.view(np.float64).astype(np.float32)


def integers_of(x: Array) -> tuple[Array, Array]:
    """Turn rows of bfloat16 into integers, int64 [T, blocks, 32], and scales, float32 [T, blocks].

    The largest element of a block is m * 2^e with 1 <= m < 2; the scale is 2^(e - 14), at least
    2^-126, and NaN where an element is not finite.
    """
    blocks = x.astype(np.float64).reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    exponents = np.frexp(largest)[1] - 1
    scales = np.where(np.isfinite(largest), 2.0 ** np.maximum(exponents - 14, -126), np.nan)
    numbers = np.rint(np.nan_to_num(blocks / scales[..., None])).astype(np.int64)
    return numbers, scales.astype(np.float32)


def integer_products(x: Array, weight: QuantizedTensor) -> Array:
    """Compute x [T, in] times int8 or nf4 weight [out, in]: float32 [T, out], bit for bit.

    lane[b mod 16] = fma(float32(sum of codes * numbers of block b), scale * x scale, the same)
    """
    with np.errstate(all="ignore"):
        numbers, x_scales = integers_of(x)
        count = numbers.shape[1]
        codes, scales = codes_and_scales(weight)
        sums = np.einsum("tbi,obi->bto", numbers, codes)
        assert np.abs(sums).max(initial=0) < 2**31
        lanes = np.zeros((LANES, *sums.shape[1:]), np.float32)
        for b in range(count):
            scale = x_scales[:, b, None] * scales[None, :, b]
            lanes[b % LANES] = fused_multiply_add(
                sums[b].astype(np.float32), scale, lanes[b % LANES]
            )
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]
