"""Ops that only attention needs."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    EVERY_DTYPE,
    EVERY_FLOAT,
    UNIT_ROUNDOFF,
    check_op,
    check_same,
    exact,
    sample,
    strided,
)

EVERY_CACHE_DTYPE = pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)


@EVERY_DTYPE
@pytest.mark.parametrize("repeats", [2, 3])
def test_repeat_heads_puts_the_copies_of_a_head_side_by_side(dtype, repeats):
    for shape in ((3, 2, 4), (1, 1, 1), (0, 2, 4), (3, 0, 4), (3, 2, 0)):
        for x in (sample(shape, dtype), sample(shape, dtype).transpose(0, 1)):
            check_same(ml.repeat_heads(x, repeats), np.repeat(x.numpy(), repeats, axis=1))
    assert ml.repeat_heads(x, 1) is x


# ---- rotary embedding ---------------------------------------------------------------------------


def frequencies_of(T, pairs, seed=7):
    return ml.polar(ml.ones((T, pairs)), sample((T, pairs), seed=seed))


def through_complex_numbers(x, frequencies):
    """Rotate as Meta's code does: pairs as complex numbers, a product, pairs again."""
    T, heads, h = x.shape
    pairs = x.to(ml.float32).reshape(T, heads, h // 2, 2).view_as_complex()
    rotated = ml.multiply(pairs, frequencies.reshape(T, 1, h // 2))
    return rotated.view_as_real().reshape(T, heads, h).to(x.dtype)


@EVERY_FLOAT
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 2), (3, 2, 4), (5, 3, 6), (7, 2, 34), (3, 8, 64), (2, 3, 128), (0, 2, 8), (3, 0, 8)],
)
def test_rotary_embedding_has_the_bits_of_the_way_through_complex_numbers(dtype, shape):
    x, frequencies = sample(shape, dtype), frequencies_of(shape[0], shape[2] // 2)
    before = np.array(x.bits())
    expected = through_complex_numbers(x, frequencies).numpy()
    check_same(ml.rotary_embedding(x, frequencies), expected)
    assert np.array_equal(x.bits(), before)
    halves = ml.concatenate([x[..., 0::2], x[..., 1::2]], dim=-1)
    check_same(ml.rotary_embedding(halves, frequencies, pairs="halves"), expected)


@EVERY_FLOAT
def test_rotary_embedding_turns_pairs_of_neighbours(dtype):
    def turn(x, f):
        pairs = x.reshape(3, 2, 4, 2)
        z = (pairs[..., 0] + 1j * pairs[..., 1]) * f[:, None]
        return np.stack([z.real, z.imag], -1).reshape(3, 2, 8)

    def largest(x, f):
        pairs = x.reshape(3, 2, 4, 2).sum(-1, keepdims=True) * f[:, None, :, None]
        return np.broadcast_to(pairs, (3, 2, 4, 2)).reshape(3, 2, 8)

    for x in (sample((3, 2, 8), dtype), strided((3, 2, 8), dtype)):
        frequencies = frequencies_of(12, 4)[::4]
        check_op(ml.rotary_embedding, turn, x, frequencies, terms=3, absolute=largest)
        nothing = ml.polar(ml.ones((3, 4)), ml.zeros((3, 4)))
        check_same(ml.rotary_embedding(x, nothing), x.numpy())


# ---- attention ----------------------------------------------------------------------------------


def attention_reference(q, k, v, start):
    """Attend in float64: q [T, H, h], k and v [S, K, h]."""
    repeats = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeats, 1), np.repeat(v, repeats, 1)
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[2])
    scores[:, np.arange(len(k)) > start + np.arange(len(q))[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v)


def filled_cache(positions, heads, head_dim, dtype):
    xk, xv = (sample((positions, heads, head_dim), dtype, seed) for seed in (1, 2))
    cache = ml.KeyValueCache(positions, heads, head_dim, dtype)
    ml.write_cache(cache, 0, xk, xv)
    return cache, xk, xv


@EVERY_CACHE_DTYPE
@pytest.mark.parametrize(("start", "T"), [(0, 1), (0, 9), (30, 1), (27, 4), (31, 0)])
def test_attention_mixes_the_values_that_each_token_sees(dtype, start, T):
    cache, xk, xv = filled_cache(31, 2, 10, dtype)
    result = check_op(
        lambda q: ml.attention(q, cache, start),
        lambda q: attention_reference(q, exact(xk)[: start + T], exact(xv)[: start + T], start),
        sample((T, 6, 10), dtype),
        terms=100,
        absolute=lambda q: np.full(q.shape, np.abs(exact(xv)).max()),
    )
    assert result.dtype is dtype


@EVERY_CACHE_DTYPE
def test_attention_of_a_view_is_that_of_its_copy(dtype):
    cache, *_ = filled_cache(20, 2, 4, dtype)
    q = sample((4, 3, 4), dtype).transpose(0, 1)
    check_same(ml.attention(q, cache, 5), ml.attention(q.copy(), cache, 5).numpy())


@EVERY_CACHE_DTYPE
def test_fused_attention_stays_within_a_bound_of_the_separate_ops(dtype):
    T, H, K, h, start = 40, 6, 2, 34, 300
    cache, *_ = filled_cache(start + T, K, h, dtype)
    q = sample((T, H, h), dtype)
    keys, values = (ml.repeat_heads(x, H // K) for x in ml.read_cache(cache, 0, start + T))
    scores = ml.matmul(q.transpose(0, 1), keys.transpose(0, 1).transpose(1, 2), dtype=ml.float32)
    scores = ml.div(scores, np.sqrt(h))
    mask = ml.triu(ml.full((T, start + T), -np.inf, ml.float32), start + 1)
    weights = ml.softmax(ml.add(scores, mask), dim=-1, dtype=dtype)
    eager = exact(ml.matmul(weights, values.transpose(0, 1)).transpose(0, 1))
    fused = exact(ml.attention(q, cache, start))
    # The separate ops round each weight to the dtype; both round the result.
    bound = 2 * UNIT_ROUNDOFF[dtype] * np.abs(exact(values)).max() + 1e-5
    assert 0 < np.abs(fused - eager).max() < bound
