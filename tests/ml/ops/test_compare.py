"""Comparisons of elements."""

import math
import operator

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    SHAPES,
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
