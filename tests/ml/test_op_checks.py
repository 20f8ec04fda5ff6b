"""The helpers that other tests trust must be able to fail."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    FLOAT_DTYPES,
    UNIT_ROUNDOFF,
    check_close,
    check_op,
    check_same,
    exact,
    sample,
    strided,
)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_check_close_accepts_one_rounding_and_refuses_two_units(dtype):
    values = np.linspace(1.0, 1.9, 50)
    once = ml.Tensor.from_numpy(values.astype(dtype.numpy_dtype))
    check_close(once, values)
    off = values * (1 + 4 * UNIT_ROUNDOFF[dtype])
    with pytest.raises(AssertionError, match="elements are off"):
        check_close(once, off)


def test_check_close_refuses_one_wrong_element_on_either_side_and_another_shape():
    x = sample((1000,))
    for value in (exact(x)[613] + 1e-3, np.nan, np.inf, -np.inf):
        wrong = exact(x)
        wrong[613] = value
        text = "1 of 1000 .*element 613|infinities or NaNs differ"
        for result, expected in (
            (x, wrong),
            (ml.Tensor.from_numpy(wrong.astype("f4")), exact(x)),
        ):
            with pytest.raises(AssertionError, match=text):
                check_close(result, expected)
    with pytest.raises(AssertionError, match="shape"):
        check_close(sample((1, 4)), exact(sample((4,))))


def test_check_close_bounds_cancellation_by_the_magnitude_of_the_terms():
    result = ml.Tensor.from_numpy(np.array([2.0**-24], np.float32))
    check_close(result, np.array([0.0]), terms=1, magnitude=np.array([1.0]))
    with pytest.raises(AssertionError):
        check_close(result, np.array([0.0]), terms=1)


def test_check_op_refuses_an_op_that_changes_its_input():
    def spoil(x):
        x.set_slice(0, 1, 5)
        return x

    with pytest.raises(AssertionError, match="input was changed"):
        check_op(spoil, lambda x: x, sample((3,)))


@pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)
def test_check_same_refuses_another_bit_shape_or_dtype(dtype):
    x = sample((2, 3), dtype)
    same = x.numpy().copy()
    check_same(x, same)
    same.view(dtype.bits_dtype)[1, 2] ^= 1
    with pytest.raises(AssertionError, match="1 of 6 elements differ"):
        check_same(x, same)
    with pytest.raises(AssertionError, match="shape"):
        check_same(x, x.numpy().reshape(3, 2))
    with pytest.raises(AssertionError, match="dtype"):
        check_same(x, np.zeros((2, 3), np.int16))


def test_check_same_tells_zero_from_minus_zero_but_not_nan_from_nan():
    with pytest.raises(AssertionError, match="differ"):
        check_same(ml.zeros((1,)), np.array([-0.0], np.float32))
    quiet = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    check_same(ml.Tensor.from_numpy(quiet[:1]), quiet[1:])


def test_strided_samples_are_views_with_gaps():
    x = strided((3, 5), ml.bfloat16)
    assert x.shape == (3, 5)
    assert not x.is_contiguous
    assert x.strides == (4, 12)
