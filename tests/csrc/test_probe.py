"""The probes read every byte once, and count what they multiply."""

from itertools import product

import numpy as np
import pytest

from . import calls
from .operands import f32, normal

SIZES = [0, 1, 3, 4, 7, 8, 63, 64, 65, 1000, 4096, 100_003, (3 << 20) + 5]


def folded(data: np.ndarray) -> int:
    words = np.frombuffer(data[: data.size // 4 * 4].tobytes(), np.uint32)
    return int(np.bitwise_xor.reduce(words)) if words.size else 0


def test_every_word_is_read_once_in_any_number_of_streams_and_threads(isa: str) -> None:
    for size in SIZES:
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        for threads, streams in product((1, 2, 3), (1, 2, 4, 8)):
            calls.set_num_threads(threads)
            assert calls.probe_read(data, streams) == folded(data)


def test_any_dtype_and_place_is_read(isa: str) -> None:
    data = normal((33, 17), f32)
    assert calls.probe_read(data[3:], 4) == folded(data[3:].reshape(-1).view(np.uint8))
    odd = np.arange(101, dtype=np.uint8)[1:]
    assert calls.probe_read(odd, 8) == folded(odd)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_multiply_adds_are_counted_by_thread_and_round(isa: str, dtype: str) -> None:
    calls.set_num_threads(1)
    one = calls.probe_multiply_add(dtype, 10)
    calls.set_num_threads(2)
    assert calls.probe_multiply_add(dtype, 30) == 2 * 3 * one
    lanes = {"avx2": 8, "portable": 0, "neon": 4, "neondot": 4, "neonbf16": 4}.get(isa, 16)
    pairs = 2 if isa.endswith("bf16") and dtype == "bfloat16" else 1
    assert one == 10 * 12 * lanes * 2 * pairs
