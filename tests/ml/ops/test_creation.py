"""Ops that make tensors, out of numbers or of random ones."""

import math
import sys

import ml_dtypes
import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    EVERY_DTYPE,
    FLOAT_DTYPES,
    SHAPES,
    check_same,
    sample,
    strided,
)

FLOATS = [row for row in ml.DTYPES if row.is_float]


def test_arange_counts_from_start_to_stop_without_it():
    for arguments in (
        (5,), (2, 5), (0, 7, 3), (0, 6, 3), (5, 0, -2), (0,), (5, 2), (2, 5, -1), (-3, 0),
    ):  # fmt: skip
        for dtype in (ml.int32, ml.float32):
            expected = np.arange(*arguments, dtype=dtype.numpy_dtype)
            check_same(ml.arange(*arguments, dtype=dtype), expected)
        assert ml.arange(*arguments).dtype is ml.int32


def test_arange_is_computed_in_float64_and_rounded_once():
    check_same(ml.arange(0, 1, 0.1), (np.arange(10) * 0.1).astype(np.float32))
    check_same(
        ml.arange(512, dtype=ml.bfloat16), np.arange(512).astype(ml_dtypes.bfloat16)
    )
    assert ml.arange(0, 256, dtype=ml.uint8).size == 256


@EVERY_DTYPE
def test_full_zeros_ones_and_eye_are_numpys(dtype):
    numpy_dtype = dtype.numpy_dtype
    for shape in SHAPES:
        check_same(ml.full(shape, 7, dtype), np.full(shape, 7, numpy_dtype))
        for made, expected in ((ml.zeros, np.zeros), (ml.ones, np.ones)):
            check_same(made(shape, dtype), expected(shape, numpy_dtype))
            check_same(made(*shape, dtype=dtype.name), expected(shape, numpy_dtype))
            check_same(made([*shape], dtype=dtype), expected(shape, numpy_dtype))
    for rows, columns in ((3, 3), (2, 5), (5, 2), (0, 3), (3, 0)):
        check_same(ml.eye(rows, columns, dtype), np.eye(rows, columns, dtype=numpy_dtype))
    check_same(ml.eye(4, dtype=dtype.name), np.eye(4, dtype=numpy_dtype))
    x = strided((3, 5), dtype)
    check_same(ml.full_like(x, 7), np.full((3, 5), 7, numpy_dtype))
    check_same(ml.zeros_like(x), np.zeros((3, 5), numpy_dtype))
    check_same(ml.ones_like(x), np.ones((3, 5), numpy_dtype))


def test_full_takes_special_values_and_the_default_dtype_is_float32():
    for value in (-math.inf, math.inf, math.nan, -0.0, 1e-40):
        for dtype in (ml.bfloat16, ml.float32):
            check_same(
                ml.full((3,), value, dtype), np.full(3, value).astype(dtype.numpy_dtype)
            )
    assert ml.zeros(1).dtype is ml.ones(1).dtype is ml.full((1,), 2).dtype is ml.float32
    assert (
        ml.full((2,), 0.5, ml.bool).tolist()
        == ml.full((2,), True, "bool").tolist()
        == [True] * 2
    )


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([True, False], ml.bool),
        ([1, 2], ml.int64),
        ([1, 2.5], ml.float32),
        ([[1.0], [2.0]], ml.float32),
        ([1, 1j], ml.complex64),
        (3, ml.int64),
        ([], ml.float32),
        ([[], []], ml.float32),
        (((1, 2), (3, 4)), ml.int64),
        (range(4), ml.int64),
        (np.ones((2, 3)), ml.float32),
        (np.ones(2, np.int16), ml.int64),
        (np.ones(2, np.uint8), ml.uint8),
        (np.ones(2, ">f4"), ml.float32),
        ([ml.tensor(1.0), ml.tensor(2.0)], ml.float32),
        ([2**63 - 1, -(2**63)], ml.int64),
    ],
)
def test_tensor_finds_the_dtype_as_pytorch_does(data, dtype):
    check_same(ml.tensor(data), np.array(data).astype(dtype.numpy_dtype))


@EVERY_DTYPE
def test_tensor_copies_and_converts(dtype):
    assert ml.tensor([[0, 1], [1, 0]], dtype=dtype).dtype is dtype
    assert ml.tensor([[0, 1], [1, 0]], dtype=dtype.name).tolist() == [[0, 1], [1, 0]]
    x = sample((2, 3), dtype)
    for data in (x, x.numpy()):
        check_same(made := ml.tensor(data), x.numpy())
        assert not np.shares_memory(made.numpy(), x.numpy())


def test_sequences_of_unequal_lengths_are_refused():
    text = r"^\[tensor\] nested sequences must have equal lengths"
    with pytest.raises(ml.ShapeError, match=text):
        ml.tensor([[1], [1, 2]])


# ---- random numbers --------------------------------------------------------------------


@pytest.mark.parametrize("function", [ml.rand, ml.randn])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_equal_seeds_give_equal_numbers_and_a_generator_goes_on(function, dtype):
    seeds = [ml.Generator(1), ml.Generator(1), ml.Generator(2)]
    first, again, other = (function(5, 7, generator=seed, dtype=dtype) for seed in seeds)
    assert first.dtype is dtype
    assert (first == again).numpy().all()
    assert (first != other).numpy().any()
    assert (first != function(5, 7, generator=seeds[0], dtype=dtype)).numpy().any()
    assert (function(9) != function(9)).numpy().any()
    for shape in ((), (0,), (3, 4), (2, 0, 3)):
        assert (
            function(*shape).shape
            == function(shape).shape
            == function([*shape]).shape
            == shape
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rand_is_uniform_below_1(dtype):
    x = ml.rand(20_000, generator=ml.Generator(1), dtype=dtype).numpy().astype(np.float64)
    digits = 2.0 ** (ml_dtypes.finfo(dtype.numpy_dtype).nmant + 1)
    assert 0 <= x.min() <= x.max() < 1
    assert (x * digits == np.floor(x * digits)).all()
    # The mean of multiples of 1 / digits is half of one below a half; 5 standard
    # deviations.
    assert abs(x.mean() - 0.5 + 0.5 / digits) < 5 * math.sqrt(1 / 12 / len(x))
    if digits > 100:
        counts = np.histogram(x, 10, (0, 1))[0]
        assert (
            (counts - 2000) ** 2 / 2000
        ).sum() < 35  # chi squared, 9 degrees: 1 in 10^4


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_randn_is_normal(dtype):
    x = (
        ml.randn(20_000, generator=ml.Generator(1), dtype=dtype)
        .numpy()
        .astype(np.float64)
    )
    assert abs(x.mean()) < 5 / math.sqrt(len(x))
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / len(x))
    assert abs((np.abs(x) < 1).mean() - math.erf(math.sqrt(0.5))) < 0.02


def test_numpys_random_module_is_imported_with_the_library():
    assert "numpy.random" in sys.modules
