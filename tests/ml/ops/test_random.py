"""Random numbers."""

import math
import sys

import ml_dtypes
import numpy as np
import pytest

from src import ml

FLOATS = [row for row in ml.DTYPES if row.is_float]


@pytest.mark.parametrize("function", [ml.rand, ml.randn])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_equal_seeds_give_equal_numbers(function, dtype):
    first, again, other = (
        function(5, 7, generator=ml.Generator(seed), dtype=dtype) for seed in (1, 1, 2)
    )
    assert first.dtype is dtype
    assert (first == again).numpy().all()
    assert (first != other).numpy().any()


@pytest.mark.parametrize("function", [ml.rand, ml.randn])
def test_a_generator_goes_on(function):
    generator = ml.Generator(3)
    assert (function(9, generator=generator) != function(9, generator=generator)).numpy().any()
    assert (function(9) != function(9)).numpy().any()


@pytest.mark.parametrize("function", [ml.rand, ml.randn, ml.zeros, ml.ones])
def test_sizes_are_numbers_or_a_sequence(function):
    for shape in ((), (0,), (3, 4), (2, 0, 3)):
        assert function(*shape).shape == function(shape).shape == function([*shape]).shape == shape


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rand_is_uniform_below_1(dtype):
    x = ml.rand(20_000, generator=ml.Generator(1), dtype=dtype).numpy().astype(np.float64)
    digits = 2.0 ** (ml_dtypes.finfo(dtype.numpy_dtype).nmant + 1)
    assert 0 <= x.min() <= x.max() < 1
    assert (x * digits == np.floor(x * digits)).all()
    # The mean of multiples of 1 / digits is half of one below a half; 5 standard deviations.
    assert abs(x.mean() - 0.5 + 0.5 / digits) < 5 * math.sqrt(1 / 12 / len(x))
    if digits > 100:
        counts = np.histogram(x, 10, (0, 1))[0]
        assert ((counts - 2000) ** 2 / 2000).sum() < 35  # chi squared, 9 degrees: 1 in 10^4


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float16, ml.float32], ids=str)
def test_randn_is_normal(dtype):
    x = ml.randn(20_000, generator=ml.Generator(1), dtype=dtype).numpy().astype(np.float64)
    assert abs(x.mean()) < 5 / math.sqrt(len(x))
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / len(x))
    assert abs((np.abs(x) < 1).mean() - math.erf(math.sqrt(0.5))) < 0.02


def test_numpys_random_module_is_imported_with_the_library():
    assert "numpy.random" in sys.modules


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ml.Generator("a"),
            ml.TensorError,
            "[Generator] seed must be an integer >= 0: 'a'",
        ),
        (lambda: ml.Generator(-1), ml.TensorError, "[Generator] seed must be an integer >= 0: -1"),
        (
            lambda: ml.rand(2, generator=3),
            ml.TensorTypeError,
            "[rand] generator must be a Generator: int",
        ),
        (
            lambda: ml.rand(2, dtype="int32"),
            ml.DTypeError,
            "[rand] dtype= must be a real floating-point dtype: int32",
        ),
        (lambda: ml.randn(-1), ml.ShapeError, "[randn] sizes must be >= 0: [-1]"),
        (lambda: ml.rand(2.0), ml.ShapeError, "[rand] sizes must be integers: (2.0,)"),
        (lambda: ml.rand(True), ml.ShapeError, "[rand] sizes must be integers: (True,)"),
        (
            lambda: ml.rand(2**40, 2**10),
            ml.TensorMemoryError,
            "[rand] memory: the system refused the allocation",
        ),
    ],
)
def test_random_functions_refuse_what_does_not_fit(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
