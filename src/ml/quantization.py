"""Quantization: from a tensor of floating-point numbers to small codes.

nf4 is computed as bitsandbytes 0.50 computes it on a processor, bit for bit, so that a model
quantized by either gives the same answers. Source: QLoRA (T. Dettmers et al., 2023), and the files
bitsandbytes/backends/default/ops.py, bitsandbytes/functional.py and csrc/cpu_ops.cpp.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from . import kernels
from .checks import check_float
from .dtype import BlockDType, float32, nf4
from .errors import DTypeError, TensorError
from .kernels import lib
from .quantized import NESTED_BLOCK, NestedScales, QuantizedTensor
from .tensor import Tensor

Floats = npt.NDArray[np.float32]

# Entries of the table by which bitsandbytes finds an 8-bit code on a processor.
_STEPS = 65536
_EXPONENTS = 7


def quantize(x: Tensor, dtype: BlockDType, double: bool = False) -> QuantizedTensor:
    """Quantize a tensor in blocks.

    nf4: scale = max |x| of 64 elements, code = number of the nearest entry of `nf4_code`;
    int8_block: scale = max |x| / 127 of 32 elements, to the nearest bfloat16, code =
    round(x / scale)

    The difference from x is at most half the distance between two entries, times the scale.

    Args:
        x: A real floating-point tensor.
        dtype: `ml.nf4` or `ml.int8_block`.
        double: For nf4, whether the scales are quantized as well: to 8 bits, in blocks of 256,
            after their mean is taken off. Saves 0.046 of 0.5625 bytes per element.

    Returns:
        A quantized tensor of the same shape and name.

    Raises:
        DTypeError: Not floating point, not a block-quantized dtype, or double without nf4.
        TensorError: An element that is NaN or infinite.
    """
    if not isinstance(dtype, BlockDType):
        raise DTypeError(f"[quantize] dtype= must be nf4 or int8_block: {dtype}")
    check_float("quantize", x)
    if double and dtype is not nf4:
        raise DTypeError(f"[quantize] dtype= of double quantization must equal nf4: {dtype}")
    codes = Tensor.empty((-(-x.size // dtype.codes_per_item),), dtype.codes)
    scales = Tensor.empty((-(-x.size // dtype.block_size),), dtype.scales)
    x = x.contiguous()
    refused = lib.quantize(
        codes._pointer, scales._pointer, x._pointer, x._size, x._dtype.code, dtype.code,
        kernels.threads or kernels.checked_threads(),
    )  # fmt: skip
    if refused:
        raise TensorError(
            f"[quantize] elements must be finite: {refused} of {x.size} are not "
            f"(shape {list(x.shape)})"
        )
    if not double:
        return QuantizedTensor(dtype, x.shape, codes, scales, name=x.name)
    absmax: Floats = scales.numpy()
    offset = np.float32(absmax.mean(dtype=np.float64) if absmax.size else 0.0)
    small, nested = quantize_scales(absmax, offset)
    return QuantizedTensor(dtype, x.shape, codes, small, nested, name=x.name)


def quantize_scales(absmax: Floats, offset: np.float32) -> tuple[Tensor, NestedScales]:
    """Quantize the scales of nf4 blocks to 8 bits.

    code[b] = number of the entry of `dynamic_map` nearest to (absmax[b] - offset) / (the largest
    such magnitude among 256 blocks)

    bitsandbytes finds the entry in a table of 65536 places, which decides near ties; so does this.
    It takes PyTorch's mean as offset, whose last bits depend on the number of threads; `quantize`
    takes the mean of float64, rounded once.

    Returns:
        The codes, uint8, and what they mean.
    """
    blocks = -(-absmax.size // NESTED_BLOCK)
    padded = np.zeros(blocks * NESTED_BLOCK, np.float32)
    padded[: absmax.size] = absmax - offset
    rows = padded.reshape(blocks, NESTED_BLOCK)
    largest = np.abs(rows).max(axis=1, initial=0.0)
    factor = 1 / np.where(largest == 0, np.float32(1), largest)
    scaled = np.clip(rows * factor[:, None], np.float32(-1), np.float32(1))
    # float32 of one fused multiply-add, which float64 holds exactly.
    halves = (scaled + np.float32(1)) * np.float32(0.5)
    places = (halves.astype(np.float64) * (_STEPS - 1) + 0.5).astype(np.float32).astype(np.int64)
    codes = _nearest_codes()[places]
    codes[largest == 0] = 0
    small = np.ascontiguousarray(codes.reshape(-1)[: absmax.size])
    return Tensor.from_numpy(small), NestedScales(
        Tensor.from_numpy(largest), dynamic_map(), float(offset)
    )


@lru_cache(maxsize=1)
def _nearest_codes() -> npt.NDArray[np.uint8]:
    """Return the number of the nearest entry of the dynamic map, for places from -1 to 1."""
    entries: Floats = dynamic_map().numpy()
    middles = np.float32(0.5) * (entries[:-1] + entries[1:])
    steps = np.arange(_STEPS, dtype=np.float32)
    values = (steps + steps) / np.float32(_STEPS - 1) - np.float32(1)
    return np.searchsorted(middles, values, side="left").astype(np.uint8)


@lru_cache(maxsize=1)
def dynamic_map() -> Tensor:
    """Compute the 8-bit dynamic map: 256 numbers from -0.993 to 1, denser towards 0.

    10^(e - 6) * middles of 2^e equal parts of [0.1, 1], for e = 0 .. 6, with both signs; 0; and 1

    Returns:
        A float32 tensor [256] in rising order.

    Source: 8-Bit Approximations for Parallelism in Deep Learning (T. Dettmers, 2015), as
    bitsandbytes' `create_dynamic_map` computes it.
    """
    entries = [0.0, 1.0]
    for exponent in range(_EXPONENTS):
        bounds = _even_steps(2**exponent + 1)
        middles = (bounds[:-1] + bounds[1:]) / np.float32(2)
        scaled = np.float32(10.0 ** (exponent - _EXPONENTS + 1)) * middles
        entries += [*scaled.tolist(), *(-scaled).tolist()]
    return Tensor.from_numpy(np.sort(np.array(entries, np.float64)).astype(np.float32))


def _even_steps(count: int) -> Floats:
    """Cut [0.1, 1] as PyTorch does: from both ends, each place by one fused multiply-add."""
    first, last = np.float32(0.1), np.float32(1)
    step = np.float64((last - first) / np.float32(count - 1))
    places = np.arange(count, dtype=np.float64)
    rising, falling = first + step * places, last - step * (count - 1 - places)
    return np.where(places < count // 2, rising, falling).astype(np.float32)


def nf4_code() -> Tensor:
    """Return the 16 numbers that nf4 codes represent: a float32 tensor [16] in rising order."""
    codes = np.arange(16, dtype=np.uint8)
    pairs = Tensor.from_numpy(codes[0::2] << 4 | codes[1::2])
    one = Tensor.from_numpy(np.ones(1, np.float32))
    return QuantizedTensor(nf4, (16,), pairs, one).dequantize(float32)
