"""Functions of one tensor, element by element."""

import math

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import FLOAT_DTYPES, SHAPES, check_op, check_same, exact, sample, strided

erf = np.vectorize(math.erf, otypes=[float])
FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "neg": np.negative,
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
}
EVERY = pytest.mark.parametrize("name", FUNCTIONS)


@EVERY
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_functions_are_numpys(name, dtype, shape):
    result = check_op(getattr(ml, name), FUNCTIONS[name], sample(shape, dtype), terms=1)
    assert result.dtype is dtype


@EVERY
def test_functions_take_views_and_special_values(name):
    special = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e-40, 88.7]], np.float32)
    for x in (strided((3, 5)), ml.Tensor.from_numpy(special)):
        check_op(getattr(ml, name), FUNCTIONS[name], x, terms=1)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "sigmoid", "gelu"])
def test_functions_turn_integers_into_float32(name):
    x = sample((3, 4), ml.int32)
    result = getattr(ml, name)(x)
    assert result.dtype is ml.float32
    check_same(result, getattr(ml, name)(x.to(ml.float32)).numpy())


@pytest.mark.parametrize("dtype", [ml.int64, ml.int32, ml.int8, ml.uint8, ml.uint16], ids=str)
def test_integers_are_negated_and_clipped_exactly(dtype):
    x = sample((3, 4), dtype)
    assert (ml.neg(x).numpy() == np.negative(x.numpy())).all()
    assert (ml.abs(-x).numpy() == np.abs(np.negative(x.numpy()))).all()
    assert ml.clip(x, 10, 20).tolist() == np.clip(exact(x), 10, 20).tolist()
    assert ml.clip(x, 10, 20).dtype is ml.relu(x).dtype is dtype


def test_complex_numbers_have_float32_lengths():
    x = sample((3, 2), ml.complex64)
    assert ml.abs(x).dtype is ml.float32
    assert np.allclose(ml.abs(x).numpy(), np.abs(exact(x)), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("low", "high"), [(-0.5, None), (None, 0.25), (-0.5, 0.25), (0.5, -0.5)])
def test_clip_moves_into_a_range(dtype, low, high):
    x = sample((4, 5), dtype)
    limits = [None if bound is None else float(np.float32(bound)) for bound in (low, high)]
    check_op(lambda x: ml.clip(x, low, high), lambda x: np.clip(x, *limits), x)


def test_clip_keeps_nan():
    assert math.isnan(ml.clip(ml.tensor(math.nan), 0, 1).item())


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_gelu_by_tanh(dtype):
    def reference(x):
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    check_op(lambda x: ml.gelu(x, approximate="tanh"), reference, sample((50,), dtype), terms=1)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ml.exp(3), ml.TensorTypeError, "[exp] x must be a Tensor: int"),
        (lambda: ml.exp(None), ml.TensorTypeError, "[exp] x must be a Tensor: NoneType"),
        (lambda: ml.exp(np.ones(3)), ml.TensorTypeError, "[exp] x must be a Tensor: ndarray"),
        (
            lambda: ml.exp(ml.tensor([True])),
            ml.DTypeError,
            "[exp] dtype must be a real floating-point dtype: bool (shape [1])",
        ),
        (
            lambda: ml.neg(ml.tensor([True])),
            ml.DTypeError,
            "[neg] dtype must be of kind float or int or complex: bool (shape [1])",
        ),
        (
            lambda: ml.clip(ml.tensor([1j]), 0),
            ml.DTypeError,
            "[clip] dtype must be of kind float or int: complex64 (shape [1])",
        ),
        (
            lambda: ml.clip(ml.ones(2)),
            ml.TensorError,
            "[clip] min or max must be given: None, None",
        ),
        (
            lambda: ml.clip(ml.tensor([1]), 0.5),
            ml.DTypeError,
            "[clip] value must be a number of the kind of int64: float",
        ),
        (
            lambda: ml.gelu(ml.ones(2), "erf"),
            ml.TensorError,
            "[gelu] approximate must be 'none' or 'tanh': 'erf'",
        ),
    ],
)
def test_functions_refuse_what_does_not_fit(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
