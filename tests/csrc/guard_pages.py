"""Runs every kernel on tensors that end where memory ends: the first byte beyond is forbidden.

A program of its own, because a kernel that reads too far kills it.
"""

import ctypes
import mmap
import sys
from typing import Any

import numpy as np

from src.ml import native, native_attention
from src.ml.dtype import bfloat16, float32, int8_block
from src.ml.key_value_cache import KeyValueCache
from src.ml.quantization import quantize_scales
from src.ml.quantized import NestedScales, QuantizedTensor

from .operands import PRODUCTS, bf16, f16, f32, normal, tensor
from .quantized_operands import FORMATS

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_kept: list[mmap.mmap] = []


def at_the_end(array: Any) -> Any:
    """Copy an array to the last bytes before a page that must not be touched."""
    pages = -(-max(array.nbytes, 1) // PAGE) + 1
    memory = mmap.mmap(-1, pages * PAGE)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = ctypes.c_void_p(start + (pages - 1) * PAGE)
    if _libc.mprotect(guard, ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    offset = (pages - 1) * PAGE - array.nbytes
    copy = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


def guarded(shape: tuple[int, ...], dtype: Any) -> Any:
    """Make a tensor of normal numbers before a forbidden page."""
    return tensor(at_the_end(normal(shape, np.dtype(dtype))))


def run_products(n: int) -> None:
    """Run linear and batched_matmul with n columns."""
    for x, weight, out in PRODUCTS:
        for tokens in (1, 3, 8, 13):
            native.linear(
                guarded((tokens, n), x),
                [guarded((7, n), weight), guarded((2, n), weight)],
                [guarded((tokens, 7), out), guarded((tokens, 2), out)],
            )
            if x == weight:
                native.batched_matmul(
                    guarded((2, tokens, n), x), guarded((2, 5, n), x), guarded((2, tokens, 5), out)
                )


def run_rows(n: int) -> None:
    """Run the other kernels on rows of n."""
    for dtype in (bf16, f32):
        row, out = guarded((2, n), dtype), guarded((2, n), dtype)
        native.softmax(row, out)
        native.rms_norm(row, guarded((n,), f16), 1e-5, out)
        native.silu(row, out)
        native.swiglu(row, row, out)
        native.argmax(row, tensor(at_the_end(np.zeros(2, np.int32))))
        native.convert(row, guarded((2, n), f16))
        native.convert(guarded((2, n), f16), out)
        angles = tensor(at_the_end(np.ones((2, n), np.complex64)))
        for halves in (False, True):
            heads, turned = guarded((2, 3, 2 * n), dtype), guarded((2, 3, 2 * n), dtype)
            native.rotary(heads, angles, turned, halves)
    for streams in (1, 2, 4, 8):
        native.probe_read(tensor(at_the_end(np.ones(n, np.uint8))), streams)
        native.probe_read(guarded((9, n), f32), streams)


def run_quantized(n: int) -> None:
    """Quantise, dequantise and multiply rows of n; every part ends where memory ends."""
    for dtype, double in FORMATS:
        x = guarded((9, n), f32)
        codes, scales = (
            tensor(at_the_end(np.zeros(-(-9 * n // per_item), part.numpy_dtype)))
            for part, per_item in (
                (dtype.codes, dtype.codes_per_item), (dtype.scales, dtype.block_size)
            )
        )  # fmt: skip
        native.quantize(x, dtype, codes, scales)
        nested = None
        if double:
            small, given = quantize_scales(scales.numpy(), np.float32(0.5))
            scales = tensor(at_the_end(small.numpy()))
            nested = NestedScales(
                tensor(at_the_end(given.absmax.numpy())),
                tensor(at_the_end(given.code.numpy())),
                0.5,
            )
        weight = QuantizedTensor(dtype, (9, n), codes, scales, nested)
        for kind in (bf16, f16, f32):
            native.dequantize(weight, None, guarded((9, n), kind))
        rows = tensor(at_the_end(np.array([8, 0], np.int32)))
        native.dequantize(weight, rows, guarded((2, n), bf16))
        for kind in (bf16, f32):
            for tokens in (1, 3, 13):
                native.linear(guarded((tokens, n), kind), [weight], [guarded((tokens, 9), kind)])


def run_int8(n: int) -> None:
    """Multiply rows of more than two stretches, in full and in short vectors of rows."""
    for rows in (1, 2, 7, 16, 33, 67):
        codes = tensor(at_the_end(np.ones((rows, n), np.int8)))
        scales = tensor(at_the_end(np.ones(rows * n // 32, bf16)))
        weight = QuantizedTensor(int8_block, (rows, n), codes, scales)
        for tokens in (1, 2, 7, 12):
            native.linear(guarded((tokens, n), bf16), [weight], [guarded((tokens, rows), f32)])


def run_attention(h: int) -> None:
    """Run write_cache and attention with heads of h, over one block and over several."""
    for dtype, kind in ((bf16, bfloat16), (f32, float32)):
        for positions, T in ((1, 1), (16, 7), (33, 33), (513, 2), (528, 40)):
            cache = KeyValueCache(positions, 2, h, kind)
            cache.keys = guarded(cache.keys.shape, dtype)
            cache.values = guarded(cache.values.shape, dtype)
            start = positions - T
            new = guarded((T, 2, h), dtype)
            native_attention.write_cache(cache, start, new, new)
            rows = (T, 6, h)
            native_attention.attention(guarded(rows, dtype), cache, start, guarded(rows, dtype))


def main() -> None:
    """Run all kernels on one instruction set."""
    native.set_isa(sys.argv[1])
    for n in (1, 2, 7, 15, 16, 17, 31, 33, 63, 65, 257):
        run_products(n)
        run_rows(n)
    for n in (1, 7, 32, 33, 64, 96, 257, 512, 576):
        run_quantized(n)
    run_int8(1056)
    for h in (2, 6, 10, 34, 64, 80, 130):
        run_attention(h)
    print("done")


if __name__ == "__main__":
    main()
