"""Choosing among many weights gives what sorting all of them would give."""

import math

import numpy as np
import pytest

from src.inference.sampling import MANY, at_least_kth_largest, draw, leave_out, smallest_of_top_p

SIZES = [1, 2, 255, 256, 257, MANY, MANY + 1, 30000]


def values(size: int, kind: str) -> "np.ndarray":
    generator = np.random.default_rng(size)
    made = {
        "spread": lambda: np.exp(3.0 * generator.standard_normal(size)),
        "flat": lambda: 1.0 - 1e-5 * generator.random(size),
        "few": lambda: generator.choice([0.25, 0.5, 1.0], size),
        "equal": lambda: np.ones(size),
        "zeros": lambda: np.where(generator.random(size) < 0.01, 1.0, 0.0),
    }[kind]()
    made[generator.integers(size)] = made.max()
    return (made / made.max() if made.max() else np.ones(size)).astype(np.float32)


KINDS = pytest.mark.parametrize("kind", ["spread", "flat", "few", "equal", "zeros"])


def top_p_of(given: "np.ndarray", top_p: float) -> "np.ndarray":
    """Returns the weights with 0 for those that top-p leaves out."""
    indices, weights = leave_out(given.copy(), *smallest_of_top_p(given, top_p))
    if indices is None:
        return weights
    kept = np.zeros_like(given)
    kept[indices] = weights
    return kept


@KINDS
@pytest.mark.parametrize("size", SIZES)
def test_the_k_largest_and_their_equals_are_found(size, kind):
    given = values(size, kind)
    for k in {k for k in (1, 2, 50, 600, size // 2, size) if 0 < k <= size}:
        expected = np.flatnonzero(given >= np.sort(given)[size - k])
        np.testing.assert_array_equal(at_least_kth_largest(given, k), expected)


@KINDS
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 0.3, 0.9, 0.999999, 1.0])
def test_top_p_keeps_the_fewest_largest_that_reach_it(size, kind, top_p):
    given = values(size, kind)
    kept = top_p_of(given, top_p)
    chosen = np.flatnonzero(kept)
    np.testing.assert_array_equal(kept[chosen], given[chosen])
    order = np.argsort(-given, kind="stable")
    assert set(chosen) == set(order[: chosen.size]) or top_p == 1.0
    total = math.fsum(given)
    reached = math.fsum(kept)
    assert reached >= top_p * total * (1 - 1e-12)
    if top_p < 1.0:  # without the smallest it would be too little
        assert reached - kept[chosen].min() <= top_p * total * (1 + 1e-12)


def test_of_equal_weights_top_p_keeps_the_first():
    for size in (104, 3 * MANY):
        for top_p, kept in ((0.125, size // 8), (0.25, size // 4), (0.5, size // 2)):
            weights = top_p_of(np.ones(size, np.float32), top_p)
            np.testing.assert_array_equal(np.flatnonzero(weights), np.arange(kept))


@pytest.mark.parametrize("size", SIZES)
def test_each_share_falls_on_the_weight_that_covers_it(size):
    weights = values(size, "spread")
    ends = np.cumsum(weights, dtype=np.float64) / math.fsum(weights)
    for share in [0.0, 1 - 2**-53, *np.random.default_rng(1).random(200)]:
        place = draw(weights, share)
        assert ends[place] >= share - 1e-9
        assert (ends[place - 1] if place else 0.0) <= share + 1e-9


@pytest.mark.parametrize("size", [3, MANY + 700])
def test_a_weight_of_zero_is_never_drawn(size):
    for kept in (0, size // 2, size - 1):
        weights = np.zeros(size, np.float32)
        weights[kept] = 1e-30
        for share in (0.0, 0.5, 1 - 2**-53, 1.0):
            assert draw(weights, share) == kept
