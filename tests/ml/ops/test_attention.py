"""Ops that only attention needs."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    FLOAT_DTYPES,
    UNIT_ROUNDOFF,
    check_op,
    check_same,
    exact,
    sample,
    strided,
)

EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)
EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@EVERY_DTYPE
@pytest.mark.parametrize("shape", [(3, 2, 4), (1, 1, 1), (0, 2, 4), (3, 0, 4), (3, 2, 0)])
@pytest.mark.parametrize("repeats", [2, 3])
def test_repeat_heads_puts_the_copies_of_a_head_side_by_side(dtype, shape, repeats):
    x = sample(shape, dtype)
    check_same(ml.repeat_heads(x, repeats), np.repeat(x.numpy(), repeats, axis=1))


def test_repeat_heads_once_is_the_tensor_itself():
    x = sample((3, 2, 4))
    assert ml.repeat_heads(x, 1) is x


def test_repeat_heads_of_a_view():
    x = sample((2, 3, 4)).transpose(0, 1)
    check_same(ml.repeat_heads(x, 2), np.repeat(x.numpy(), 2, axis=1))


@pytest.mark.parametrize(
    ("x", "repeats", "text"),
    [
        (sample((3, 4)), 2, "[repeat_heads] ndim must equal 3: 2 (shape [3, 4])"),
        (sample((3, 2, 4)), 0, "[repeat_heads] repeats must be >= 1: 0"),
        (sample((3, 2, 4)), -2, "[repeat_heads] repeats must be >= 1: -2"),
        (sample((3, 2, 4)), 2.0, "[repeat_heads] repeats must be integers: (2.0,)"),
    ],
)
def test_repeat_heads_refuses_what_does_not_fit(x, repeats, text):
    with pytest.raises(ml.ShapeError) as caught:
        ml.repeat_heads(x, repeats)
    assert str(caught.value) == text


def frequencies_of(T, pairs, seed=7):
    return ml.polar(ml.ones((T, pairs)), sample((T, pairs), seed=seed))


def through_complex_numbers(x, frequencies):
    """Rotate as Meta's code does: pairs as complex numbers, a product, pairs again."""
    T, heads, h = x.shape
    pairs = x.to(ml.float32).reshape(T, heads, h // 2, 2).view_as_complex()
    turned = ml.multiply(pairs, frequencies.reshape(T, 1, h // 2))
    return turned.view_as_real().reshape(T, heads, h).to(x.dtype)


@EVERY_FLOAT
@pytest.mark.parametrize(
    "shape", [(1, 1, 2), (3, 2, 4), (5, 3, 6), (2, 4, 32), (7, 2, 34), (3, 8, 64), (2, 3, 128)]
)
def test_rotary_embedding_has_the_bits_of_the_way_through_complex_numbers(dtype, shape):
    x, frequencies = sample(shape, dtype), frequencies_of(shape[0], shape[2] // 2)
    before = np.array(x.bits())
    result = ml.rotary_embedding(x, frequencies)
    check_same(result, through_complex_numbers(x, frequencies).numpy())
    assert np.array_equal(x.bits(), before)


@EVERY_FLOAT
def test_rotary_embedding_turns_pairs_of_neighbours(dtype):
    def turn(x, f):
        pairs = x.reshape(3, 2, 4, 2)
        z = (pairs[..., 0] + 1j * pairs[..., 1]) * f[:, None]
        return np.stack([z.real, z.imag], -1).reshape(3, 2, 8)

    def largest(x, f):
        pairs = x.reshape(3, 2, 4, 2).sum(-1, keepdims=True) * f[:, None, :, None]
        return np.broadcast_to(pairs, (3, 2, 4, 2)).reshape(3, 2, 8)

    x, frequencies = sample((3, 2, 8), dtype), frequencies_of(3, 4)
    check_op(ml.rotary_embedding, turn, x, frequencies, terms=3, absolute=largest)


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 2, 4), (5, 3, 6), (2, 4, 34), (2, 3, 128)])
def test_rotary_embedding_of_halves_has_the_bits_of_interleaved_pairs(dtype, shape):
    x, frequencies = sample(shape, dtype), frequencies_of(shape[0], shape[2] // 2)
    array = x.numpy()
    halves = ml.Tensor.from_numpy(np.concatenate([array[..., 0::2], array[..., 1::2]], axis=-1))
    expected = ml.rotary_embedding(x, frequencies, pairs="interleaved")
    check_same(ml.rotary_embedding(halves, frequencies, pairs="halves"), expected.numpy())
    check_same(ml.rotary_embedding(x, frequencies), expected.numpy())


def test_rotary_embedding_refuses_unknown_pairs():
    with pytest.raises(ml.TensorError) as caught:
        ml.rotary_embedding(sample((3, 2, 8)), frequencies_of(3, 4), pairs="neox")
    text = "[rotary_embedding] pairs must be 'interleaved' or 'halves': 'neox'"
    assert str(caught.value) == text


def test_rotary_embedding_at_position_zero_changes_nothing():
    x = sample((2, 3, 8), ml.bfloat16)
    nothing = ml.polar(ml.ones((2, 4)), ml.zeros((2, 4)))
    check_same(ml.rotary_embedding(x, nothing), x.numpy())


@pytest.mark.parametrize("shape", [(0, 2, 8), (3, 0, 8), (3, 2, 0)])
def test_rotary_embedding_of_nothing_is_nothing(shape):
    result = ml.rotary_embedding(sample(shape), frequencies_of(shape[0], shape[2] // 2))
    assert result.shape == shape


def test_rotary_embedding_of_views():
    x = strided((3, 2, 8), ml.bfloat16)
    frequencies = frequencies_of(12, 4)[::4]
    expected = ml.rotary_embedding(x.contiguous(), frequencies.contiguous())
    check_same(ml.rotary_embedding(x, frequencies), expected.numpy())


@pytest.mark.parametrize(
    ("x", "frequencies", "error", "text"),
    [
        (
            sample((3, 2, 8)),
            frequencies_of(4, 4),
            ml.ShapeError,
            "[rotary_embedding] frequencies.shape must equal (x.shape[0], x.shape[2] / 2): "
            "[4, 4] != [3, 4] (x [3, 2, 8])",
        ),
        (
            sample((3, 2, 7)),
            frequencies_of(3, 3),
            ml.ShapeError,
            "[rotary_embedding] frequencies.shape must equal (x.shape[0], x.shape[2] / 2): "
            "[3, 3] != [3, 3.5] (x [3, 2, 7])",
        ),
        (
            sample((3, 8)),
            frequencies_of(3, 4),
            ml.ShapeError,
            "[rotary_embedding] x.ndim must equal 3: 2 (shape [3, 8])",
        ),
        (
            sample((3, 2, 8)),
            sample((3, 4)),
            ml.DTypeError,
            "[rotary_embedding] frequencies.dtype must equal complex64: float32",
        ),
        (
            sample((3, 2, 8), ml.int32),
            frequencies_of(3, 4),
            ml.DTypeError,
            "[rotary_embedding] dtype must be a real floating-point dtype: int32 (shape [3, 2, 8])",
        ),
    ],
)
def test_rotary_embedding_refuses_what_does_not_fit(x, frequencies, error, text):
    with pytest.raises(error) as caught:
        ml.rotary_embedding(x, frequencies)
    assert str(caught.value) == text


def attention_reference(q, k, v, start):
    """Attends in float64: q [T, H, h], k and v [S, K, h]."""
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


EVERY_CACHE_DTYPE = pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)


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
    assert np.abs(fused - eager).max() < bound
    assert np.abs(fused - eager).max() > 0


@pytest.mark.parametrize(
    ("shape", "dtype", "start", "error", "text"),
    [
        (
            (1, 4),
            ml.float32,
            0,
            ml.ShapeError,
            "[attention] xq.shape must equal [T, heads, 4]: [1, 4]",
        ),
        ((1, 4, 6), ml.float32, 0, ml.ShapeError, "xq.shape must equal [T, heads, 4]: [1, 4, 6]"),
        ((1, 3, 4), ml.float32, 0, ml.ShapeError, "must be a multiple of cache.heads: 3 and 2"),
        ((2, 4, 4), ml.float32, 7, ml.ShapeError, "in [0, cache.positions]: 7 and 9, 8"),
        ((2, 4, 4), ml.float32, -1, ml.ShapeError, "in [0, cache.positions]: -1 and 1, 8"),
        ((2, 4, 4), ml.float32, True, ml.ShapeError, "start_pos must be integers: (True,)"),
        (
            (2, 4, 4),
            ml.bfloat16,
            0,
            ml.DTypeError,
            "xq.dtype must equal cache.dtype: bfloat16 != float32",
        ),
        (
            (2, 4, 4),
            ml.int32,
            0,
            ml.DTypeError,
            "xq.dtype must equal cache.dtype: int32 != float32",
        ),
    ],
)
def test_attention_refuses_what_does_not_fit_the_cache(shape, dtype, start, error, text):
    cache, *_ = filled_cache(8, 2, 4, ml.float32)
    with pytest.raises(error) as caught:
        ml.attention(sample(shape, dtype), cache, start)
    assert text in str(caught.value)
    ml.attention(sample((2, 4, 4)), cache, 6)
