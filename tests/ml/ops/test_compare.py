"""Comparisons, and the choice among elements."""

import math
import operator

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    EVERY_DTYPE,
    SHAPES,
    bits_of,
    check_same,
    exact,
    sample,
    strided,
)

OPERATORS = {
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt,
    "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", OPERATORS)
REAL = [row for row in ml.DTYPES if row.kind in ("float", "int")]


@EVERY
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_comparisons_are_numpys(name, dtype):
    pairs = [(ml.zeros((0, 1), dtype), ml.zeros((4,), dtype))]
    pairs += [(strided((3, 4), dtype), sample((4,), dtype, 1))]
    for shape in SHAPES:
        a, b = (ml.clip(sample(shape, dtype, seed), 0, 2) for seed in (1, 2))
        pairs += [(a, b), (a, a), (a, 1), (2, b)]
    for x, y in pairs:
        values = [exact(z) if isinstance(z, ml.Tensor) else z for z in (x, y)]
        check_same(getattr(ml, name)(x, y), np.asarray(OPERATORS[name](*values)))
        check_same(OPERATORS[name](x, y), np.asarray(OPERATORS[name](*values)))


def test_nan_equals_nothing_and_numbers_are_rounded_to_the_dtype_of_floats():
    x = ml.tensor([math.nan, math.inf, -0.0])
    assert (x == x).tolist() == [False, True, True]
    assert (x != x).tolist() == [True, False, False]
    assert (x == 0).tolist() == [False, False, True]
    for dtype in ("bfloat16", "float16", "float32"):
        assert (ml.full((1,), 0.1, dtype) == 0.1).item()


def test_integers_are_compared_with_any_number_exactly():
    x = ml.tensor([1, 2, 2**62])
    assert (x > 1.5).tolist() == [False, True, True]
    assert (x == 2**62).tolist() == [False, False, True]
    assert (x < 2**70).tolist() == [True, True, True]
    assert (ml.tensor([200], dtype="uint8") > -1).item()


def test_bools_and_complex_numbers_are_equal_or_not():
    mask = ml.tensor([True, False])
    assert (mask == True).tolist() == [True, False]  # noqa: E712
    assert (mask == ml.tensor([False, False])).tolist() == [False, True]
    assert (mask < 2**70).tolist() == [True, True]
    assert (ml.tensor([1j, 2]) == 1j).tolist() == [True, False]


def test_what_is_no_number_is_not_equal():
    x = ml.ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True  # type: ignore[comparison-overlap]
    with pytest.raises(TypeError):
        x < None  # noqa: B015


@EVERY_DTYPE
def test_where_chooses_bit_for_bit(dtype):
    for shape in SHAPES:
        a = sample(shape, dtype)
        b = sample(shape, dtype, seed=1)
        condition = sample(shape) > 0
        expected = np.where(condition.numpy(), bits_of(a), bits_of(b))
        assert (bits_of(ml.where(condition, a, b)) == expected).all()


def test_where_takes_numbers_and_broadcasts():
    condition = ml.tensor([[True], [False]])
    assert ml.where(condition, ml.tensor([1.0, 2.0]), 0).tolist() == [[1, 2], [0, 0]]
    assert ml.where(condition, 1.0, 0).dtype is ml.float32
    assert ml.where(condition, 1, 0).dtype is ml.int64
    assert ml.where(ml.tensor([]) > 0, 1, 0).shape == (0,)


def test_allclose_is_numpys():
    a = ml.tensor([1.0, 100.0, math.inf])
    assert ml.allclose(a, ml.tensor([1.0, 100.0005, math.inf]))
    assert not ml.allclose(a, ml.tensor([1.0, 100.01, math.inf]))
    assert ml.allclose(a, ml.tensor([1.0, 100.01, math.inf]), rtol=1e-3)
    assert ml.allclose(ml.tensor([0.0]), ml.tensor([1e-3]), atol=1e-2)
    assert not ml.allclose(ml.tensor([math.nan]), ml.tensor([math.nan]))
    assert ml.allclose(ml.tensor([math.nan]), ml.tensor([math.nan]), equal_nan=True)
    assert ml.zeros(0).allclose(ml.zeros(0))
    assert ml.allclose(ml.ones(3, dtype="bfloat16"), ml.ones((), dtype="bfloat16"))
