"""Layer normalization and the logarithm of softmax."""

import math

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import FLOAT_DTYPES, SHAPES, check_op, check_same, sample, strided

EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


def log_softmax(x, dim):
    if not x.size:
        return x
    x = x - x.max(dim, keepdims=True)
    return x - np.log(np.exp(x).sum(dim, keepdims=True))


def layer_norm(x, weight, bias, ndim):
    dims = tuple(range(-ndim, 0))
    if x.size:
        x = (x - x.mean(dims, keepdims=True)) / np.sqrt(x.var(dims, keepdims=True) + 1e-5)
    return x * weight + bias


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [s for s in SHAPES if s], ids=str)
def test_log_softmax_is_the_logarithm_of_softmax(dtype, shape):
    for dim in range(-len(shape), len(shape)):
        result = check_op(
            lambda x, dim=dim: ml.log_softmax(x, dim),
            lambda x, dim=dim: log_softmax(x, dim),
            sample(shape, dtype),
            terms=1,
        )
        assert result.dtype is dtype


def test_log_softmax_of_far_values_views_and_another_dtype():
    assert ml.log_softmax(ml.tensor([1000.0, 0.0, -math.inf])).tolist() == [0, -1000, -math.inf]
    x = strided((3, 5), ml.bfloat16)
    check_same(ml.log_softmax(x), ml.log_softmax(x.contiguous()).numpy())
    assert ml.log_softmax(x, dtype="float32").dtype is ml.float32


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [s for s in SHAPES if s], ids=str)
def test_layer_norm_is_the_formula(dtype, shape):
    for ndim in range(1, len(shape) + 1):
        sizes = shape[-ndim:]
        weight, bias = sample(sizes, dtype, 1), sample(sizes, dtype, 2)
        check_op(
            lambda x, w, b, sizes=sizes: ml.layer_norm(x, sizes, w, b),
            lambda x, w, b, ndim=ndim: layer_norm(x, w, b, ndim),
            sample(shape, dtype),
            weight,
            bias,
            terms=4,
            absolute=lambda x, w, b: np.broadcast_to(8 * w + b, x.shape),
        )
    plain = ml.layer_norm(sample(shape, dtype), shape[-1])
    check_same(plain, ml.layer_norm(sample(shape, dtype), [shape[-1]], eps=1e-5).numpy())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ml.layer_norm(ml.ones(2, 3), 2),
            ml.ShapeError,
            "[layer_norm] x.shape must end in normalized_shape: [2, 3], [2]",
        ),
        (
            lambda: ml.layer_norm(ml.ones(2), ()),
            ml.ShapeError,
            "[layer_norm] x.shape must end in normalized_shape: [2], []",
        ),
        (
            lambda: ml.layer_norm(ml.ones(2, 3), 3, weight=ml.ones(2)),
            ml.ShapeError,
            "[layer_norm] weight.shape must equal normalized_shape: [2] != [3]",
        ),
        (
            lambda: ml.layer_norm(ml.ones(3), 3, bias=5),
            ml.TensorTypeError,
            "[layer_norm] bias must be a Tensor: int",
        ),
        (
            lambda: ml.layer_norm(ml.ones(3), 3, eps="a"),
            ml.DTypeError,
            "[layer_norm] value must be a number of the kind of float32: str",
        ),
        (
            lambda: ml.log_softmax(ml.tensor([1, 2])),
            ml.DTypeError,
            "[log_softmax] dtype must be a real floating-point dtype: int64 (shape [2])",
        ),
        (
            lambda: ml.log_softmax(ml.ones(2), dtype="int8"),
            ml.DTypeError,
            "[log_softmax] dtype= must be a real floating-point dtype: int8",
        ),
        (
            lambda: ml.log_softmax(ml.ones(())),
            ml.IndexOutOfRangeError,
            "[log_softmax] dim must be in [0, 0): -1",
        ),
    ],
)
def test_norms_refuse_what_does_not_fit(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
