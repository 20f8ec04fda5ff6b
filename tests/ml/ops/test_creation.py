"""Ops that make tensors out of numbers."""

import math

import ml_dtypes
import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import SHAPES, check_same, sample, strided

EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((5,), [0, 1, 2, 3, 4]),
        ((2, 5), [2, 3, 4]),
        ((0, 7, 3), [0, 3, 6]),
        ((0, 6, 3), [0, 3]),
        ((5, 0, -2), [5, 3, 1]),
        ((0,), []),
        ((5, 2), []),
        ((2, 5, -1), []),
        ((-3, 0), [-3, -2, -1]),
    ],
)
def test_arange_counts_from_start_to_stop_without_it(arguments, expected):
    check_same(ml.arange(*arguments), np.array(expected, np.int32))
    check_same(ml.arange(*arguments, dtype=ml.float32), np.array(expected, np.float32))


def test_arange_of_floats_is_float32_rounded_once_from_float64():
    check_same(ml.arange(0, 1, 0.1), (np.arange(10) * 0.1).astype(np.float32))


def test_arange_in_bfloat16_rounds_each_value():
    expected = np.arange(0, 512, 1).astype(ml_dtypes.bfloat16)
    check_same(ml.arange(0, 512, dtype=ml.bfloat16), expected)


@pytest.mark.parametrize("numbers", [(0, 5, 0), (0, math.inf, 1), (math.nan, 5, 1)])
def test_arange_refuses_steps_of_zero_and_infinite_numbers(numbers):
    with pytest.raises(ml.TensorError) as caught:
        ml.arange(*numbers)
    assert str(caught.value) == (
        "[arange] start, stop and step must be finite, and step != 0: "
        f"{numbers[0]}, {numbers[1]}, {numbers[2]}"
    )


@pytest.mark.parametrize(
    ("arguments", "dtype", "wrong"),
    [((0, 257), ml.uint8, 256), ((-1, 3), ml.uint16, -1), ((2**31, 2**31 + 1), ml.int32, 2**31)],
)
def test_arange_refuses_values_that_the_dtype_cannot_hold(arguments, dtype, wrong):
    with pytest.raises(ml.TensorError, match=rf"^\[arange\] value must be in .* {wrong}$"):
        ml.arange(*arguments, dtype=dtype)
    assert ml.arange(0, 256, dtype=ml.uint8).size == 256


def test_arange_refuses_fractions_in_an_integer_dtype():
    with pytest.raises(ml.DTypeError, match=r"^\[arange\] value must be a number of the kind"):
        ml.arange(0, 2, 0.5, dtype=ml.int32)


@EVERY_DTYPE
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_full_zeros_ones_fill_any_shape_and_dtype(dtype, shape):
    check_same(ml.full(shape, 7, dtype), np.full(shape, 7, dtype.numpy_dtype))
    check_same(ml.zeros(shape, dtype), np.zeros(shape, dtype.numpy_dtype))
    check_same(ml.ones(shape, dtype), np.ones(shape, dtype.numpy_dtype))


@EVERY_DTYPE
def test_the_like_forms_take_shape_and_dtype_and_share_nothing(dtype):
    x = strided((3, 5), dtype)
    check_same(ml.full_like(x, 7), np.full((3, 5), 7, dtype.numpy_dtype))
    check_same(ml.zeros_like(x), np.zeros((3, 5), dtype.numpy_dtype))
    check_same(ml.ones_like(x), np.ones((3, 5), dtype.numpy_dtype))


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, -0.0, 1e-40])
@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)
def test_full_takes_special_values(value, dtype):
    check_same(ml.full((3,), value, dtype), np.full(3, value).astype(dtype.numpy_dtype))


def test_the_default_dtype_is_float32():
    assert ml.zeros((1,)).dtype is ml.ones((1,)).dtype is ml.full((1,), 2).dtype is ml.float32


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((-1,), 0), ml.ShapeError, "[full] sizes must be >= 0: [-1]"),
        (((2.0,), 0), ml.ShapeError, "[full] sizes must be integers: (2.0,)"),
        (
            ((2,), "x"),
            ml.DTypeError,
            "[full] value must be a number of the kind of float32: str",
        ),
        (
            ((2,), 300, ml.uint8),
            ml.TensorError,
            "[full] value must be in [0, 255] for uint8: 300",
        ),
    ],
)
def test_full_refuses_sizes_and_values_that_cannot_be(arguments, error, text):
    with pytest.raises(error) as caught:
        ml.full(*arguments)
    assert str(caught.value) == text


@EVERY_DTYPE
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2), (2, 3, 4), (0, 3), (3, 0), (1, 1)])
@pytest.mark.parametrize("diagonal", [-10, -1, 0, 1, 2, 10])
def test_triu_keeps_what_is_on_and_above_the_diagonal(dtype, shape, diagonal):
    x = sample(shape, dtype)
    check_same(ml.triu(x, diagonal), np.triu(x.numpy(), diagonal))


def test_triu_of_a_view_and_of_infinities_gives_zeros_not_nan():
    x = ml.full((3, 4), -math.inf).transpose(0, 1)
    expected = np.triu(np.full((4, 3), -np.inf, np.float32), 1)
    check_same(ml.triu(x, 1), expected)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_triu_refuses_fewer_than_two_dimensions(shape):
    with pytest.raises(ml.ShapeError) as caught:
        ml.triu(sample(shape))
    assert str(caught.value) == (f"[triu] ndim must be >= 2: {len(shape)} (shape {list(shape)})")
