"""Attention over the cache: right within the bound,
and the same bits however it is cut.
"""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from src import ml

from . import calls
from .calls import Cache, lib
from .operands import (
    UNIT_ROUNDOFF,
    Array,
    bf16,
    bits,
    check_same_bits,
    empty,
    f32,
    normal,
)

# H, K, h: shared heads and not; whole vectors, tails of words, several tiles of columns
HEADS = [
    (4, 2, 64),
    (6, 2, 10),
    (3, 3, 6),
    (8, 1, 80),
    (2, 2, 2),
    (7, 7, 34),
    (2, 1, 256),
]
# start_pos, T: one token, whole and cut panels, one block and several, both sides of
# their edges
PLACES = [
    (0, 1),
    (0, 7),
    (250, 20),
    (255, 1),
    (256, 1),
    (257, 2),
    (511, 3),
    (600, 1),
    (0, 300),
]
NAN_BYTE = 0xFF  # all of its bytes make a NaN of either type
types = pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
heads = pytest.mark.parametrize("sizes", HEADS, ids=str)


def poisoned_cache(positions: int, K: int, h: int, dtype: Any) -> Cache:
    """Make a cache in which whatever has not been written is a NaN."""
    shapes = calls.cache_shapes(positions, K, h, dtype.itemsize)
    return Cache(
        *(
            np.full(shape, NAN_BYTE, np.uint8).view(dtype)
            for shape in ((*shape[:-1], shape[-1] * dtype.itemsize) for shape in shapes)
        )
    )


def written_cache(positions: int, k: Array, v: Array, cache_dtype: Any) -> Cache:
    """Return a poisoned cache with keys and values [S, K, h] of either dtype."""
    _, K, h = k.shape
    if cache_dtype is calls.Q8_0:
        shape = calls.coded_shape(positions, K, h)
        cache: Cache = calls.CodedCache(
            *(np.full(shape, NAN_BYTE, np.uint8) for _ in range(2))
        )
    else:
        cache = poisoned_cache(positions, K, h, k.dtype)
    calls.write_cache(cache, 0, k, v)
    return cache


def rounded_to_q8_0(x: Array) -> Array:
    """Return the elements that a cache in q8_0 stores for x [S, K, h]: float32."""
    wide = ml.Tensor.from_numpy(x.astype(f32).reshape(-1, x.shape[-1]))
    return ml.quantize(wide, calls.Q8_0).dequantize(ml.float32).numpy().reshape(x.shape)


def operands(
    sizes: tuple[int, int, int], start: int, T: int, dtype: Any
) -> tuple[Array, ...]:
    """Draw queries [T, H, h], keys and values [S, K, h]."""
    H, K, h = sizes
    shapes = (T, H, h), (start + T, K, h), (start + T, K, h)
    q, k, v = (normal(shape, dtype, seed) for seed, shape in enumerate(shapes))
    return q, k, v


def attend(
    q: Array,
    k: Array,
    v: Array,
    start: int,
    chunk: int = 0,
    limits: calls.Limits = calls.NO_LIMITS,
    cache_dtype: Any = None,
) -> Array:
    """Write the positions before start at once, and then write and attend chunk by
    chunk.
    """
    T = len(q)
    cache = written_cache(start + T + 5, k[:start], v[:start], cache_dtype)
    out = empty(q.shape, q.dtype)
    for at in range(0, T, chunk or T):
        rows = slice(at, at + (chunk or T))
        new = slice(start + at, start + at + (chunk or T))
        calls.write_cache(cache, start + at, k[new], v[new])
        calls.attention(q[rows], cache, start + at, out[rows], limits)
    return out


def check_attention(
    out: Array,
    q: Array,
    k: Array,
    v: Array,
    start: int,
    limits: calls.Limits = calls.NO_LIMITS,
) -> None:
    """Check against float64.

    A score is a chain of h steps, and its distance from the maximum is rounded once more;
    that is the relative error of a weight, which counts twice (in the sum of values and
    in the sum of weights). The chains along positions take 256 steps, some 4 for each
    block and the exponentials.
    """
    T, H, h = q.shape
    S, K, _ = k.shape
    wide_q = q.astype(np.float64).swapaxes(0, 1)  # [H, T, h]
    wide_k, wide_v = (
        np.repeat(x.astype(np.float64), H // K, 1).swapaxes(0, 1) for x in (k, v)
    )
    ages = start + np.arange(T)[:, None] - np.arange(S)
    unseen = (ages < 0) | (ages >= (limits.window or S + 1))
    scores = wide_q @ wide_k.swapaxes(1, 2) / np.sqrt(h)
    if limits.soft_cap:
        scores = limits.soft_cap * np.tanh(scores / limits.soft_cap)
    scores[:, unseen] = -np.inf
    sinks = np.full(H, -np.inf) if limits.sinks is None else limits.sinks
    sinks = np.broadcast_to(sinks.astype(np.float64)[:, None, None], (H, T, 1))
    largest = np.maximum(scores.max(-1, keepdims=True), sinks)
    distance = scores - largest
    sums = np.exp(distance).sum(-1, keepdims=True) + np.exp(sinks - largest)
    weights = np.exp(distance) / sums
    size = np.abs(wide_q) @ np.abs(wide_k).swapaxes(1, 2) / np.sqrt(h)
    step = 2.0**-24
    error = 2 * step * ((h + 3) * size + np.where(unseen, 0, np.abs(distance)))
    steps = 256 + 4 * (S / 256 + 1) + 24
    expected = weights @ wide_v
    average = (weights * error).sum(-1, keepdims=True)
    bound = (weights * (error + steps * step)) @ np.abs(wide_v)
    bound += average * np.abs(expected) + UNIT_ROUNDOFF[out.dtype] * np.abs(expected)
    off = np.abs(out.astype(np.float64).swapaxes(0, 1) - expected)
    assert (off <= bound * 1.01 + 1e-40).all()


@types
@heads
def test_attention_is_right_with_the_same_bits_on_every_path(
    dtype: Any, sizes: tuple[int, int, int]
) -> None:
    for start, T in PLACES:
        q, k, v = operands(sizes, start, T, dtype)
        run = partial(attend, q, k, v, start)
        check_same_bits(lambda run=run: bits(run()), threads=(2,))
        check_attention(run(), q, k, v, start)


@types
@heads
def test_windows_sinks_and_caps_are_right_with_the_same_bits_on_every_path(
    dtype: Any, sizes: tuple[int, int, int]
) -> None:
    sinks = 2 * normal((sizes[0],), f32, seed=9)
    for start, T in PLACES:
        q, k, v = operands(sizes, start, T, dtype)
        for limits in (
            calls.Limits(window=3),
            calls.Limits(window=255, sinks=sinks),
            calls.Limits(window=40, soft_cap=1.5),
            calls.Limits(sinks=sinks, soft_cap=4.0),
        ):
            run = partial(attend, q, k, v, start, limits=limits)
            check_same_bits(lambda run=run: bits(run()), threads=(2,))
            check_attention(run(), q, k, v, start, limits)


@types
def test_positions_before_a_window_are_not_read(isa: str, dtype: Any) -> None:
    q, k, v = operands((4, 2, 10), 600, 12, dtype)
    limits = calls.Limits(window=300)
    clean = bits(attend(q, k, v, 600, limits=limits))
    k[:288] = np.nan  # the window begins at 301; keys are read in groups of 16
    v[:301] = np.nan
    assert bits(attend(q, k, v, 600, limits=limits)) == clean
    for threads in (1, 3):
        calls.set_num_threads(threads)
        for chunk in (1, 5):
            assert bits(attend(q, k, v, 600, chunk, limits)) == clean


@types
def test_the_bound_refuses_a_window_that_is_off_by_one(dtype: Any) -> None:
    q, k, v = operands((4, 2, 64), 40, 4, dtype)
    out = attend(q, k, v, 40, limits=calls.Limits(window=5))
    check_attention(out, q, k, v, 40, calls.Limits(window=5))
    for window in (4, 6):
        with pytest.raises(AssertionError):
            check_attention(out, q, k, v, 40, calls.Limits(window=window))


@types
def test_the_bound_refuses_a_result_that_misses_a_position_or_sees_one_too_many(
    dtype: Any,
) -> None:
    q, k, v = operands((4, 2, 64), 40, 4, dtype)
    check_attention(attend(q, k, v, 40), q, k, v, 40)
    for start in (39, 41):
        cut = operands((4, 2, 64), 41, 4, dtype)
        out = attend(q, np.concatenate([k, cut[1]])[: start + 4],
                     np.concatenate([v, cut[2]])[: start + 4], start)  # fmt: skip
        with pytest.raises(AssertionError):
            check_attention(out, q, k, v, 40)


@types
@pytest.mark.parametrize("sizes", HEADS[1:4], ids=str)
def test_attention_gives_the_same_bits_on_any_threads(
    dtype: Any, sizes: tuple[int, int, int]
) -> None:
    for start, T in ((510, 9), (700, 1), (0, 40)):
        q, k, v = operands(sizes, start, T, dtype)
        check_same_bits(lambda q=q, k=k, v=v, start=start: bits(attend(q, k, v, start)))


@types
@pytest.mark.parametrize("threads", [1, 3])
def test_attention_gives_the_same_bits_for_any_chunks(
    isa: str, dtype: Any, threads: int
) -> None:
    calls.set_num_threads(threads)
    q, k, v = operands((6, 2, 10), 240, 280, dtype)  # over two edges of blocks
    whole = bits(attend(q, k, v, 240))
    for chunk in (1, 7, 64):
        assert bits(attend(q, k, v, 240, chunk)) == whole


@types
@pytest.mark.parametrize("h", [32, 64, 96, 320])
def test_attention_in_q8_0_has_the_bits_of_the_float32_elements_on_every_path(
    dtype: Any, h: int
) -> None:
    sinks = normal((6,), f32, seed=9)
    limited = calls.Limits(window=300, sinks=sinks, soft_cap=4.0)
    for (start, T), limits in product(
        ((0, 1), (255, 2), (700, 1), (490, 20)), (calls.NO_LIMITS, limited)
    ):
        q, k, v = operands((6, 2, h), start, T, dtype)
        wide = q.astype(f32), rounded_to_q8_0(k), rounded_to_q8_0(v)
        expected = bits(attend(*wide, start, limits=limits).astype(dtype))
        run = partial(attend, q, k, v, start, 7, limits, calls.Q8_0)
        check_same_bits(lambda run=run: bits(run()), threads=(1, 2))
        assert bits(run()) == expected


@types
def test_elements_that_q8_0_cannot_store_make_their_block_nan(
    isa: str, dtype: Any
) -> None:
    q, k, v = operands((4, 2, 64), 250, 12, dtype)
    clean = attend(q, k, v, 250, cache_dtype=calls.Q8_0)
    for bad, array in product((np.nan, np.inf, 1e7), (k, v)):
        kept = array[257, 1, 3]
        array[257, 1, 3] = bad
        out = attend(q, k, v, 250, cache_dtype=calls.Q8_0).astype(f32)
        array[257, 1, 3] = kept
        assert bits(out[:7].astype(dtype)) == bits(clean[:7])
        assert bits(out[:, :2].astype(dtype)) == bits(clean[:, :2])
        assert np.isnan(out[7:, 2:, :32]).all()


def test_scratch_does_not_grow_with_tokens_times_positions() -> None:
    def scratch(T: int, start: int, threads: int) -> int:
        return int(
            lib.attention_scratch_bytes(
                T, start, 32, 8, 64, 0, lib.TYPE_BFLOAT16, threads
            )
        )

    assert (
        scratch(512, 0, 2)
        == scratch(512, 2**13, 2)
        == scratch(8192, 2**11, 2)
        < 3 * 2**18
    )
    # Beyond, each thread has the scores of one panel of 6 rows.
    assert scratch(512, 2**17, 2) - scratch(512, 2**16, 2) == 2 * 6 * 2**16 * 4
    # One token of many heads: each thread has the scores of one key/value head's 4 rows.
    assert scratch(1, 2**17, 2) - scratch(1, 2**16, 2) == 2 * 4 * 2**16 * 4
    # One token of fewer heads: for each head and block the scores, their largest ones, and
    # the sum of values.
    assert (
        scratch(1, 2**17, 3) - scratch(1, 2**16, 3)
        == 32 * 2**16 // 256 * (256 + 16 + 64) * 4
    )


@types
def test_more_positions_never_need_less_scratch(dtype: Any) -> None:
    kind = calls.code(np.zeros(0, dtype))
    for T, (H, K, h), threads, window in product(
        (1, 2, 9, 300), HEADS, (1, 2, 7), (0, 1, 512)
    ):
        sizes = [
            lib.attention_scratch_bytes(T, start, H, K, h, window, kind, threads)
            for start in (*range(0, 3000, 50), 10_000, 60_000, 100_000)
        ]
        assert sizes == sorted(sizes)


@types
def test_large_scores_do_not_overflow(isa: str, dtype: Any) -> None:
    q, k, v = operands((2, 1, 64), 300, 3, dtype)
    q = (q * 100).astype(dtype)
    k = (k * 100).astype(dtype)
    out = attend(q, k, v, 300)
    assert np.isfinite(out.astype(np.float32)).all()
    check_attention(out, q, k, v, 300)


@types
def test_a_nan_or_infinity_reaches_the_rows_that_see_it_and_no_others(
    isa: str, dtype: Any
) -> None:
    q, k, v = operands((4, 2, 10), 250, 12, dtype)
    clean = attend(q, k, v, 250)
    for bad in (np.nan, np.inf, -np.inf):
        for array in (k, v):
            kept = array[257, 1, 3]
            array[257, 1, 3] = bad
            out = attend(q, k, v, 250)
            array[257, 1, 3] = kept
            assert bits(out[:7]) == bits(clean[:7])  # before position 257
            assert bits(out[:, :2]) == bits(clean[:, :2])  # the other key/value head
            if array is v or np.isnan(bad):
                assert not np.isfinite(out[7:, 2:].astype(np.float32)).all(axis=2).any()


def test_a_block_whose_scores_are_all_minus_infinity_weighs_nothing(isa: str) -> None:
    q, k, v = operands((1, 1, 2), 299, 1, f32)
    q[...] = 1
    k[:256] = -np.inf
    expected = attend(q, k[256:], v[256:], 43)
    np.testing.assert_allclose(attend(q, k, v, 299), expected, rtol=1e-6)
    k[...] = -np.inf
    assert np.isnan(attend(q, k, v, 299)).all()


@types
@pytest.mark.parametrize("threads", [1, 3])
def test_the_cache_holds_what_was_written_and_nothing_else(
    dtype: Any, threads: int
) -> None:
    calls.set_num_threads(threads)
    k = normal((700, 3, 10), dtype)
    v = normal((700, 3, 10), dtype, seed=1)
    cache = poisoned_cache(721, 3, 10, dtype)
    calls.write_cache(cache, 13, k, v)
    words = cache.keys.transpose(1, 3, 0, 2, 4).reshape(736, 3, 10)
    for found, given in ((words, k), (cache.values.swapaxes(0, 1), v)):
        assert np.ascontiguousarray(found[13:713]).tobytes() == given.tobytes()
        for rest in (found[:13], found[713:]):
            assert set(np.ascontiguousarray(rest).tobytes()) == {NAN_BYTE}
