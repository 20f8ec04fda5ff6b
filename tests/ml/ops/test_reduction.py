"""Ops that bring a dimension together."""

import math

import ml_dtypes
import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import FLOAT_DTYPES, check_op, check_same, exact, sample, strided

EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
FILLED = [(1,), (7,), (3, 5), (2, 3, 4), (1, 1, 1), (2, 3, 1, 5), (4, 33)]
SHAPES_AND_DIMS = [(shape, dim) for shape in FILLED for dim in range(-len(shape), len(shape))]
WITHOUT_ROWS = [((0, 3), -1), ((2, 0, 3), -1), ((0,), 0), ((3, 0), -1), ((3, 0), 0)]


# ---- mean ---------------------------------------------------------------------------------------


@EVERY_FLOAT
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_mean_averages_over_any_dimension(dtype, shape, dim, keepdim):
    check_op(
        lambda x: ml.mean(x, dim, keepdim),
        lambda x: x.mean(dim, keepdims=keepdim),
        sample(shape, dtype),
        terms=shape[dim] + 1,
        absolute=lambda x: x.mean(dim, keepdims=keepdim),
    )


def test_mean_goes_over_the_last_dimension_by_default_and_takes_views():
    x = strided((3, 5), ml.bfloat16)
    check_same(ml.mean(x, -1), ml.mean(x.contiguous(), 1).numpy())


def test_mean_of_many_bfloat16_is_accumulated_in_float32():
    assert ml.mean(ml.ones((10_000,), ml.bfloat16)).item() == 1.0


def test_mean_of_nothing_is_nan_and_of_no_rows_is_empty():
    check_same(ml.mean(sample((2, 0)), -1), np.full(2, np.nan, np.float32))
    assert ml.mean(sample((0, 3)), -1).shape == (0,)


# ---- softmax ------------------------------------------------------------------------------------


def softmax64(x, dim=-1):
    powers = np.exp(x - x.max(dim, keepdims=True))
    return powers / powers.sum(dim, keepdims=True)


@EVERY_FLOAT
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_softmax_turns_any_dimension_into_weights(dtype, shape, dim):
    check_op(
        lambda x: ml.softmax(x, dim),
        lambda x: softmax64(x, dim),
        sample(shape, dtype),
        terms=12 + shape[dim],
    )


@pytest.mark.parametrize("source", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("target", FLOAT_DTYPES, ids=str)
def test_softmax_writes_the_dtype_that_is_asked_for(source, target):
    result = check_op(
        lambda x: ml.softmax(x, dtype=target), softmax64, sample((3, 40), source), terms=52
    )
    assert result.dtype is target


@pytest.mark.parametrize(("shape", "dim"), WITHOUT_ROWS)
@EVERY_FLOAT
def test_softmax_of_nothing_is_nothing(dtype, shape, dim):
    assert ml.softmax(sample(shape, dtype), dim).shape == shape


def test_softmax_subtracts_the_maximum_so_large_scores_do_not_overflow():
    x = ml.Tensor.from_numpy(np.array([[1e38, 1e38, -1e38], [88.0, 89.0, 90.0]], np.float32))
    check_op(ml.softmax, softmax64, x, terms=15)


def test_softmax_gives_masked_columns_zero_and_leaves_the_rest_unchanged_bit_for_bit():
    x = sample((4, 37))
    masked = ml.concatenate([x, ml.full((4, 27), -math.inf)], dim=1)
    result = ml.softmax(masked)
    check_same(result[:, :37].contiguous(), ml.softmax(x).numpy())
    assert not result[:, 37:].numpy().any()


def test_softmax_of_nothing_but_minus_infinity_or_with_a_nan_is_nan():
    x = np.zeros((3, 4), np.float32)
    x[0], x[1, 2] = -np.inf, np.nan
    result = ml.softmax(ml.Tensor.from_numpy(x)).numpy()
    assert np.isnan(result[:2]).all()
    assert (result[2] == 0.25).all()


def test_softmax_of_a_view():
    x = strided((3, 5))
    check_same(ml.softmax(x), ml.softmax(x.contiguous()).numpy())


# ---- argmax -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, ml.int32, ml.uint16, ml.uint8], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_argmax_is_numpys(dtype, shape, dim):
    x = sample(shape, dtype)
    check_same(ml.argmax(x, dim), np.asarray(exact(x).argmax(dim)).astype(np.int32))


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, ml.int32], ids=str)
def test_argmax_takes_the_first_of_equals_and_views(dtype):
    x = ml.Tensor.from_numpy(np.array([[3, 7, 7], [7, 7, 7]]).astype(dtype.numpy_dtype))
    assert ml.argmax(x, -1).numpy().tolist() == [1, 0]
    assert ml.argmax(x.transpose(0, 1), 0).numpy().tolist() == [1, 0]


@EVERY_FLOAT
@pytest.mark.parametrize("dim", [0, 1])
def test_argmax_counts_a_nan_as_the_greatest_and_sees_infinities(dtype, dim):
    rows = np.array(
        [[1, np.nan, np.inf, np.nan], [-np.inf] * 4, [-np.inf, -5, -np.inf, -5], [0, 1, np.inf, 2]]
    ).astype(dtype.numpy_dtype)
    x = ml.Tensor.from_numpy(rows if dim == 1 else np.ascontiguousarray(rows.T))
    assert ml.argmax(x, dim).numpy().tolist() == [1, 0, 1, 2]


def test_argmax_of_one_row_is_a_number():
    assert ml.argmax(ml.arange(5, dtype=ml.float32)).item() == 4


def test_argmax_of_no_rows_is_empty():
    assert ml.argmax(sample((0, 3)), -1).shape == (0,)


@pytest.mark.parametrize(
    ("x", "dim", "error", "text"),
    [
        (
            sample((3, 0)),
            1,
            ml.ShapeError,
            "[argmax] shape[1] must be >= 1: 0 (shape [3, 0])",
        ),
        (
            sample((3,), ml.complex64),
            0,
            ml.DTypeError,
            "[argmax] dtype must be of kind float or int or bool: complex64 (shape [3])",
        ),
        (sample((3,)), 1, ml.IndexOutOfRangeError, "[argmax] dim must be in [-1, 1): 1"),
        (sample(()), -1, ml.IndexOutOfRangeError, "[argmax] dim must be in [0, 0): -1"),
    ],
)
def test_argmax_refuses_what_has_no_greatest(x, dim, error, text):
    with pytest.raises(error) as caught:
        ml.argmax(x, dim)
    assert str(caught.value) == text


@pytest.mark.parametrize("op", [ml.mean, ml.softmax])
def test_mean_and_softmax_refuse_other_dtypes_and_dimensions(op):
    name = op.__name__
    with pytest.raises(ml.DTypeError) as caught:
        op(sample((3,), ml.int32))
    assert str(caught.value) == (
        f"[{name}] dtype must be a real floating-point dtype: int32 (shape [3])"
    )
    with pytest.raises(ml.IndexOutOfRangeError) as caught:
        op(sample((3,)), 1)
    assert str(caught.value) == f"[{name}] dim must be in [-1, 1): 1"


def test_softmax_refuses_a_result_that_is_no_float():
    with pytest.raises(ml.DTypeError) as caught:
        ml.softmax(sample((3,)), dtype=ml.int32)
    assert str(caught.value) == ("[softmax] dtype= must be a real floating-point dtype: int32")


# ---- rms_norm -----------------------------------------------------------------------------------


def rms_norm64(x, weight, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4), (4, 64), (2, 129)])
def test_rms_norm_scales_rows_to_a_root_mean_square_of_one(dtype, shape):
    x, weight = sample(shape, dtype), sample(shape[-1:], dtype, seed=1)
    check_op(lambda a, w: ml.rms_norm(a, w, 1e-5), rms_norm64, x, weight, terms=shape[-1] + 8)


@EVERY_FLOAT
@pytest.mark.parametrize("weight_dtype", [ml.float16, ml.float32], ids=str)
def test_rms_norm_takes_weights_of_more_precision(dtype, weight_dtype):
    x, weight = sample((3, 40), dtype), sample((40,), weight_dtype, seed=1)
    result = check_op(lambda a, w: ml.rms_norm(a, w, 1e-5), rms_norm64, x, weight, terms=48)
    assert result.dtype is dtype


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float16, ml.float32])
def test_rms_norm_rounds_once_to_the_dtype_asked_for(dtype):
    x, weight = sample((3, 40)), sample((40,), ml.bfloat16)
    result = ml.rms_norm(x, weight, 1e-5, dtype=dtype)
    check_same(result, ml.rms_norm(x, weight, 1e-5).to(dtype).numpy())
    assert result.dtype is dtype


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 5)])
def test_rms_norm_of_nothing_is_nothing(shape):
    assert ml.rms_norm(sample(shape), sample(shape[-1:]), 1e-5).shape == shape


def test_rms_norm_of_zeros_is_zero_and_of_views_is_that_of_their_elements():
    assert not ml.rms_norm(ml.zeros((2, 8)), ml.ones((8,)), 1e-5).numpy().any()
    x, weight = strided((3, 5), ml.bfloat16), sample((10,), ml.bfloat16)[::2]
    expected = ml.rms_norm(x.contiguous(), weight.contiguous(), 1e-5)
    check_same(ml.rms_norm(x, weight, 1e-5), expected.numpy())


def test_rms_norm_agrees_with_the_parts_it_is_made_of():
    x, weight = sample((3, 64)), sample((64,), seed=1)
    mean = ml.mean(ml.pow(x, 2), -1, keepdim=True)
    parts = ml.multiply(ml.multiply(x, ml.rsqrt(ml.add(mean, 1e-5))), weight)
    assert np.allclose(ml.rms_norm(x, weight, 1e-5).numpy(), parts.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "weight", "error", "text"),
    [
        (
            sample((2, 5)),
            sample((4,)),
            ml.ShapeError,
            "[rms_norm] weight.shape must equal (x.shape[-1],): [4] != [5] (x [2, 5], weight [4])",
        ),
        (
            sample((2, 5)),
            sample((1, 5)),
            ml.ShapeError,
            "[rms_norm] weight.shape must equal (x.shape[-1],): [1, 5] != [5] "
            "(x [2, 5], weight [1, 5])",
        ),
        (
            sample(()),
            sample((1,)),
            ml.ShapeError,
            "[rms_norm] ndim must be >= 1: 0 (shape [])",
        ),
        (
            sample((5,)),
            sample((5,), ml.int32),
            ml.DTypeError,
            "[rms_norm] dtype must be a real floating-point dtype: int32 (shape [5])",
        ),
        (
            sample((5,), ml.int32),
            sample((5,)),
            ml.DTypeError,
            "[rms_norm] dtype must be a real floating-point dtype: int32 (shape [5])",
        ),
    ],
)
def test_rms_norm_refuses_what_does_not_fit(x, weight, error, text):
    with pytest.raises(error) as caught:
        ml.rms_norm(x, weight, 1e-5)
    assert str(caught.value) == text


@pytest.mark.oracle
def test_softmax_and_rms_norm_in_bfloat16_are_as_close_to_the_truth_as_pytorchs():
    torch = pytest.importorskip("torch", reason="needs the oracle extra")
    x = sample((16, 256), ml.bfloat16)
    theirs = torch.from_numpy(x.bits().view(np.int16).copy()).view(torch.bfloat16)
    soft = torch.softmax(theirs, -1).view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    norm = torch.nn.functional.rms_norm(theirs, (256,), eps=1e-5)
    norm = norm.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    one = ml.ones((256,), ml.bfloat16)
    for mine, other, truth in (
        (ml.softmax(x), soft, softmax64(exact(x))),
        (ml.rms_norm(x, one, 1e-5), norm, rms_norm64(exact(x), 1.0)),
    ):
        my_error = np.abs(exact(mine) - truth).max()
        assert my_error <= np.abs(other.astype(np.float64) - truth).max() * 1.001
