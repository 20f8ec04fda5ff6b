"""Sums, averages and extremes."""

import math

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import FLOAT_DTYPES, SHAPES, check_op, check_same, exact, sample, strided

DIMS = [None, 0, -1, (0, -1), (1,), ()]
ORDERED = (*FLOAT_DTYPES, ml.int64, ml.int32, ml.uint8)


def dims_of(shape):
    """The choices of dimensions that a shape has."""
    for dim in DIMS:
        dims = range(len(shape)) if dim is None else dim if isinstance(dim, tuple) else (dim,)
        there = all(-len(shape) <= d < len(shape) for d in dims)
        if there and len({d % len(shape) for d in dims}) == len(dims):
            yield dim


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_sum_and_mean_are_numpys(dtype, shape, keepdim):
    for dim in dims_of(shape):
        x = sample(shape, dtype)
        result = check_op(
            lambda x, dim=dim: ml.sum(x, dim, keepdim),
            lambda x, dim=dim: x.sum(dim, keepdims=keepdim),
            x,
            terms=1,
            absolute=lambda x, dim=dim: x.sum(dim, keepdims=keepdim),
        )
        assert result.dtype is dtype
        count = x.size / max(result.size, 1)
        expected = exact(x).sum(dim, keepdims=keepdim) / (count if x.size else math.nan)
        mean = ml.mean(x, dim, keepdim)
        assert np.allclose(exact(mean), expected, rtol=2**-8, atol=2**-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [ml.int32, ml.uint8, ml.int8, ml.uint16, ml.int64], ids=str)
def test_integers_and_bools_are_added_as_int64(dtype):
    x = sample((3, 4), dtype)
    assert ml.sum(x).dtype is ml.cumsum(x, 0).dtype is ml.int64
    assert ml.sum(x, 1).tolist() == exact(x).sum(1).tolist()
    assert ml.cumsum(x, -1).tolist() == exact(x).cumsum(-1).tolist()
    assert ml.sum(x > 50).item() == (exact(x) > 50).sum()


def test_sum_of_another_dtype():
    x = sample((100,), ml.bfloat16)
    wide = ml.sum(x, dtype=ml.float32)
    assert wide.dtype is ml.float32
    assert wide.item() == np.float32(exact(x).sum())
    assert ml.sum(ml.tensor([2**24, 1]), dtype="float32").dtype is ml.float32
    assert ml.sum(ml.tensor([1, 2j])).item() == 1 + 2j


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s], ids=str)
def test_cumsum_is_numpys(dtype, shape):
    for dim in (0, -1):
        check_op(
            lambda x, dim=dim: ml.cumsum(x, dim),
            lambda x, dim=dim: x.cumsum(dim),
            sample(shape, dtype),
            terms=1,
            absolute=lambda x, dim=dim: x.cumsum(dim),
        )


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if 0 not in s], ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_are_numpys(dtype, shape, name):
    for x in (sample(shape, dtype), *([strided(shape, dtype)] if len(shape) > 1 else [])):
        best = getattr(ml, name)(x)
        assert best.shape == ()
        assert best.item() == getattr(exact(x), name)()
        for dim in range(-x.ndim, x.ndim):
            for keepdim in (False, True):
                values, indices = getattr(ml, name)(x, dim, keepdim=keepdim)
                check_same(values, getattr(x.numpy(), name)(dim, keepdims=keepdim))
                order = getattr(exact(x), f"arg{name}")(dim, keepdims=keepdim)
                assert indices.tolist() == order.tolist()
                assert indices.dtype is ml.int64


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_nan_and_bools(name):
    x = ml.tensor([[1.0, math.nan, 3.0], [5.0, 5.0, 2.0]])
    values, indices = getattr(ml, name)(x, 1)
    assert math.isnan(values.tolist()[0])
    assert indices.tolist() == [1, 0 if name == "max" else 2]
    assert math.isnan(getattr(x, name)().item())
    assert getattr(ml.tensor([True, False]), name)().item() is (name == "max")


def test_extremes_of_rows_that_are_not_there():
    values, indices = ml.max(ml.zeros(0, 3), 1)
    assert values.shape == indices.shape == (0,)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ml.sum(ml.ones(2), 1),
            ml.IndexOutOfRangeError,
            "[sum] dim must be in [-1, 1): 1",
        ),
        (lambda: ml.sum(ml.ones(2, 2), (0, -2)), ml.ShapeError, "[sum] dims must differ: [0, -2]"),
        (lambda: ml.sum(ml.ones(2), "a"), ml.ShapeError, "[sum] dim must be integers: ('a',)"),
        (lambda: ml.sum(ml.ones(2), True), ml.ShapeError, "[sum] dim must be integers: (True,)"),
        (lambda: ml.sum([1]), ml.TensorTypeError, "[sum] x must be a Tensor: list"),
        (
            lambda: ml.mean(ml.tensor([1])),
            ml.DTypeError,
            "[mean] dtype must be a real floating-point dtype: int64 (shape [1])",
        ),
        (
            lambda: ml.max(ml.zeros(2, 0), 1),
            ml.ShapeError,
            "[max] number of elements must be >= 1: 0 (shape [2, 0])",
        ),
        (
            lambda: ml.min(ml.zeros(0)),
            ml.ShapeError,
            "[min] number of elements must be >= 1: 0 (shape [0])",
        ),
        (
            lambda: ml.max(ml.tensor([1j])),
            ml.DTypeError,
            "[max] dtype must be of kind float or int or bool: complex64 (shape [1])",
        ),
    ],
)
def test_aggregates_refuse_what_does_not_fit(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
