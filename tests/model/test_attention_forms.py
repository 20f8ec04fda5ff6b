"""Attention has one arithmetic and two forms: `eager`, the definition, and
`ml.attention`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml.kernels import available_isas, build_info, set_isa
from src.model.llama import LlamaAttention, causal_mask
from src.model.windows import WindowAttention, window_mask

DTYPES = (ml.bfloat16, ml.float32)
THREADS = (1, 2, 3, 7)
BLOCK = 256  # positions of a block of a cache


@dataclass(frozen=True)
class Shape:
    """The sizes of one call, the threads that run it, and what scores are divided by."""

    T: int
    start_pos: int
    K: int
    G: int
    h: int
    dtype: ml.DType
    threads: int
    divisor: float
    window: int | None = None
    has_sinks: bool = False
    soft_cap: float | None = None

    @property
    def positions(self) -> int:
        return self.start_pos + self.T


@pytest.fixture(autouse=True)
def _settings_come_back() -> Iterator[None]:
    isa = build_info()["isa"]
    threads = ml.get_num_threads()
    yield
    set_isa(isa)
    ml.set_num_threads(threads)


def random_shape(
    random: np.random.Generator, most_tokens: int, most_positions: int
) -> Shape:
    """Draw sizes, of which one token, a short prompt and a few positions are frequent."""
    T = int(
        random.choice((1, random.integers(1, 9), random.integers(1, most_tokens + 1)))
    )
    S = int(
        random.choice(
            (T, random.integers(T, T + 300), random.integers(T, most_positions + 1))
        )
    )
    K, G = (int(n) for n in random.choice((1, 2, 3, 4, 5), 2))
    h = 2 * int(random.choice((random.integers(1, 20), random.integers(1, 160), 32, 64)))
    if T * S * K * G * h > 2**27:  # keeps the eager form's memory and time small
        h = 34
        K = 1
        G = min(G, 3)
    divisor = float(random.choice((math.sqrt(h), 1 / 0.0078125, 3.7)))
    dtype = DTYPES[random.integers(2)]
    threads = int(random.choice(THREADS))
    window = random.choice((None, 1, random.integers(1, 20), random.integers(1, S + 2)))
    return Shape(
        T,
        S - T,
        K,
        G,
        h,
        dtype,
        threads,
        divisor,
        None if window is None else int(window),
        bool(random.integers(2)),
        random.choice((None, 0.7, 3.0)),
    )


def drawn(
    random: np.random.Generator, shape: tuple[int, ...], dtype: ml.DType
) -> ml.Tensor:
    values = random.standard_normal(shape, dtype=np.float32)
    return ml.Tensor.from_numpy(values).to(dtype)


def filled_cache(keys: ml.Tensor, values: ml.Tensor, positions: int) -> ml.KeyValueCache:
    """Return a cache of keys and values [S, K, h]; what follows them is NaN."""
    _, K, h = keys.shape
    cache = ml.KeyValueCache(positions, K, h, keys.dtype)
    for x in (cache.keys, cache.values):
        x.bits().view(np.uint8)[...] = 0xFF
    ml.write_cache(cache, 0, keys, values)
    return cache


def run_eager(
    xq: ml.Tensor,
    cache: ml.KeyValueCache,
    start_pos: int,
    divisor: float,
    window: int | None = None,
    sinks: ml.Tensor | None = None,
    soft_cap: float | None = None,
) -> ml.Tensor:
    """Run the spelled-out form, of Llama where nothing else is asked for."""
    T, H, _ = xq.shape
    args = SimpleNamespace(group_size=H // cache.heads)
    model: Any = SimpleNamespace(
        args=args,
        divisor=divisor,
        window=window,
        sinks=sinks,
        soft_cap=soft_cap,
        limits={},
    )
    is_llama = window is None and sinks is None and soft_cap is None
    form = LlamaAttention.eager if is_llama else WindowAttention.eager
    return form(model, xq, cache, start_pos, causal_mask(T, start_pos))


def scattered(
    random: np.random.Generator, keys: ml.Tensor, values: ml.Tensor, shape: Shape
) -> tuple[ml.KeyValueCache, ml.Spans]:
    """Lay the blocks of the sequence into a larger cache, in a random order."""
    count = -(-shape.positions // BLOCK)
    blocks = [int(block) for block in random.permutation(count + 2)[:count]]
    cache = ml.KeyValueCache((count + 2) * BLOCK, shape.K, shape.h, keys.dtype)
    for x in (cache.keys, cache.values):
        x.bits().view(np.uint8)[...] = 0xFF
    ml.write_cache(cache, ml.Spans([(0, shape.positions, blocks)]), keys, values)
    return cache, ml.Spans([(shape.start_pos, shape.T, blocks)])


def check_forms(random: np.random.Generator, shape: Shape) -> None:
    """Compare both forms, whole, in chunks, and with scattered blocks, on one instruction
    set.
    """
    set_isa(random.choice(available_isas()))
    ml.set_num_threads(shape.threads)
    xq = drawn(random, (shape.T, shape.K * shape.G, shape.h), shape.dtype)
    keys = drawn(random, (shape.positions, shape.K, shape.h), shape.dtype)
    values = drawn(random, (shape.positions, shape.K, shape.h), shape.dtype)
    cache = filled_cache(keys, values, shape.positions + int(random.integers(0, 300)))
    sinks = drawn(random, (shape.K * shape.G,), ml.float32) if shape.has_sinks else None
    limits = (shape.divisor, shape.window, sinks, shape.soft_cap)
    expected = run_eager(xq, cache, shape.start_pos, *limits).bits()
    whole = ml.attention(xq, cache, shape.start_pos, *limits)
    np.testing.assert_array_equal(whole.bits(), expected)
    set_isa(random.choice(available_isas()))
    ml.set_num_threads(int(random.choice(THREADS)))
    cut = int(random.integers(0, shape.T))
    for start, stop in ((0, cut), (cut, shape.T)):
        part = ml.attention(xq[start:stop], cache, shape.start_pos + start, *limits)
        np.testing.assert_array_equal(part.bits(), expected[start:stop])
    places, spans = scattered(random, keys, values, shape)
    result = ml.attention(xq, places, spans, *limits)
    np.testing.assert_array_equal(result.bits(), expected)


@pytest.mark.parametrize("seed", range(10))
def test_both_forms_give_the_same_bits(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(20):
        shape = random_shape(random, 40, 700)
        check_forms(random, shape)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_both_forms_give_the_same_bits_for_long_sequences(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(50):
        shape = random_shape(random, 300, 9000)
        check_forms(random, shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_forms_give_the_same_bits_for_every_instruction_set_and_threads(
    dtype: ml.DType,
) -> None:
    random = np.random.default_rng(7)
    for T, start_pos in ((1, 0), (1, 700), (7, 255), (40, 500)):
        xq, keys, values = (
            drawn(random, (count, heads, 34), dtype)
            for count, heads in ((T, 6), (start_pos + T, 2), (start_pos + T, 2))
        )
        cache = filled_cache(keys, values, start_pos + T)
        results = set()
        for isa in available_isas():
            set_isa(isa)
            for threads in THREADS:
                ml.set_num_threads(threads)
                results.add(run_eager(xq, cache, start_pos, 5.5).bits().tobytes())
                results.add(ml.attention(xq, cache, start_pos, 5.5).bits().tobytes())
        assert len(results) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_limits_give_the_same_bits_for_every_instruction_set_and_threads(
    dtype: ml.DType,
) -> None:
    random = np.random.default_rng(8)
    sinks = drawn(random, (6,), ml.float32)
    for T, start_pos in ((1, 0), (1, 700), (7, 255), (40, 500)):
        xq, keys, values = (
            drawn(random, (count, heads, 34), dtype)
            for count, heads in ((T, 6), (start_pos + T, 2), (start_pos + T, 2))
        )
        cache = filled_cache(keys, values, start_pos + T)
        for limits in ((5.5, 3), (5.5, 300, sinks), (5.5, 260, sinks, 2.0)):
            results = set()
            for isa in available_isas():
                set_isa(isa)
                for threads in THREADS:
                    ml.set_num_threads(threads)
                    results.add(run_eager(xq, cache, start_pos, *limits).bits().tobytes())
                    attention = ml.attention(xq, cache, start_pos, *limits)
                    results.add(attention.bits().tobytes())
            assert len(results) == 1


def test_a_window_mask_shows_the_last_positions() -> None:
    shown = window_mask(3, 4, 2, first=1).numpy() == 0
    assert shown.astype(int).tolist() == [
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_a_window_of_all_positions_is_no_window() -> None:
    random = np.random.default_rng(3)
    xq, keys, values = (
        drawn(random, (count, heads, 8), ml.float32)
        for count, heads in ((5, 4), (300, 2), (300, 2))
    )
    cache = filled_cache(keys, values, 300)
    plain = ml.attention(xq, cache, 295).bits()
    np.testing.assert_array_equal(ml.attention(xq, cache, 295, None, 300).bits(), plain)
    other = ml.attention(xq, cache, 295, None, 299).bits()
    assert (other[4] != plain[4]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_forms_give_the_same_bits_with_a_q8_0_cache(dtype: ml.DType) -> None:
    random = np.random.default_rng(5)
    T, S, K, G, h = 9, 530, 2, 3, 64
    cache = ml.KeyValueCache(S, K, h, "q8_0")
    ml.write_cache(cache, 0, *(drawn(random, (S, K, h), dtype) for _ in range(2)))
    xq = drawn(random, (T, K * G, h), dtype)
    for window, soft_cap in ((None, None), (5, None), (300, 1.5)):
        limits = 8.0, window, None, soft_cap
        fused = ml.attention(xq, cache, S - T, *limits)
        eager = run_eager(xq, cache, S - T, *limits)
        assert fused.dtype is eager.dtype is dtype
        np.testing.assert_array_equal(fused.bits(), eager.contiguous().bits())
