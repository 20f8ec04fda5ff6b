"""Ops that only attention needs."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    EVERY_CACHE_DTYPE,
    EVERY_DTYPE,
    EVERY_FLOAT,
    check_same,
    sample,
    samples,
)


@EVERY_DTYPE
@pytest.mark.parametrize("repeats", [2, 3])
def test_repeat_heads_puts_the_copies_of_a_head_side_by_side(dtype, repeats):
    for shape in ((3, 2, 4), (1, 1, 1), (0, 2, 4), (3, 0, 4), (3, 2, 0)):
        for x in (sample(shape, dtype), sample(shape, dtype).transpose(0, 1)):
            check_same(ml.repeat_heads(x, repeats), np.repeat(x.numpy(), repeats, axis=1))
    assert ml.repeat_heads(x, 1) is x


# ---- rotary embedding ------------------------------------------------------------------


def rotations_of(T, pairs, seed=7):
    return ml.polar(ml.ones((T, pairs)), sample((T, pairs), seed=seed))


def through_complex_numbers(x, rotations):
    """Rotate as Meta's code does: pairs as complex numbers, a product, pairs again."""
    T, heads, h = x.shape
    pairs = x.contiguous().to(ml.float32).reshape(T, heads, h // 2, 2).view_as_complex()
    rotated = ml.multiply(pairs, rotations.reshape(T, 1, h // 2))
    return rotated.view_as_real().reshape(T, heads, h).to(x.dtype)


@EVERY_FLOAT
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 2),
        (3, 2, 4),
        (5, 3, 6),
        (7, 2, 34),
        (3, 8, 64),
        (2, 3, 128),
        (0, 2, 8),
        (3, 0, 8),
    ],
)
def test_rotary_embedding_has_the_bits_of_the_way_through_complex_numbers(dtype, shape):
    rotations = rotations_of(2 * shape[0], shape[2] // 2)[::2]
    for x in samples(shape, dtype):
        before = np.array(x.bits())
        expected = through_complex_numbers(x, rotations).numpy()
        check_same(ml.rotary_embedding(x, rotations), expected)
        assert np.array_equal(x.bits(), before)
    halves = ml.concatenate([x[..., 0::2], x[..., 1::2]], dim=-1)
    check_same(ml.rotary_embedding(halves, rotations, pairs="halves"), expected)


@EVERY_FLOAT
@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
def test_rotations_of_fewer_pairs_rotate_the_first_elements(dtype, pairs):
    x = ml.randn(5, 3, 8, generator=ml.Generator(1)).to(dtype)
    angles = ml.randn(5, 3, generator=ml.Generator(2))
    rotations = ml.polar(ml.ones_like(angles), angles)
    result = ml.rotary_embedding(x, rotations, pairs).numpy()
    first = ml.rotary_embedding(x[..., :6].contiguous(), rotations, pairs).numpy()
    np.testing.assert_array_equal(result[..., :6], first)
    np.testing.assert_array_equal(result[..., 6:], x.numpy()[..., 6:])


# ---- attention -------------------------------------------------------------------------


@EVERY_CACHE_DTYPE
@pytest.mark.parametrize(("start", "T"), [(0, 1), (0, 9), (30, 1), (31, 0), (300, 40)])
def test_attention_has_the_bits_of_the_separate_ops(dtype, start, T):
    H = 6
    K = 2
    h = 34
    S = start + T
    cache = ml.KeyValueCache(max(S, 1), K, h, dtype)
    ml.write_cache(cache, 0, *(sample((S, K, h), dtype, seed) for seed in (1, 2)))
    keys, values = (ml.repeat_heads(x, H // K) for x in ml.read_cache(cache, 0, S))
    mask = ml.triu(ml.full((T, S), -np.inf, ml.float32), start + 1)
    for q in samples((T, H, h), dtype):
        scores = ml.matmul(
            q.transpose(0, 1), keys.transpose(0, 1).transpose(1, 2), ml.float32
        )
        weights = ml.softmax(ml.add(ml.multiply(scores, 1 / np.sqrt(h)), mask), dim=-1)
        eager = ml.matmul(weights, values.transpose(0, 1), dtype).transpose(0, 1)
        check_same(ml.attention(q, cache, start), eager.numpy())


def test_sinks_may_be_a_part_of_a_tensor_or_the_result_of_an_op():
    cache = ml.KeyValueCache(3, 2, 8, ml.float32)
    ml.write_cache(cache, 0, *(sample((3, 2, 8), ml.float32, seed) for seed in (1, 2)))
    q = sample((3, 4, 8), ml.float32, 3)
    sinks = ml.tensor([0.5, -1.0, 2.0, 0.0])
    expected = ml.attention(q, cache, 0, sinks=sinks).numpy()
    pairs = ml.stack([sinks, ml.ones(4)], dim=1)
    for x in (pairs[:, 0], ml.multiply(ml.multiply(sinks, 2.0), 0.5)):
        check_same(ml.attention(q, cache, 0, sinks=x), expected)
    assert (expected != ml.attention(q, cache, 0).numpy()).all()
