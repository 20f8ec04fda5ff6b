"""Products with block-quantized weights, and rows of a block-quantized table."""

import numpy as np
import pytest

from src import ml
from tests.csrc.int8_operands import by_integers, integer_products
from tests.ml.op_checks import FLOAT_DTYPES, check_same, sample, strided

EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
FORMATS = pytest.mark.parametrize(
    ("block_dtype", "double"), [(ml.nf4, False), (ml.nf4, True), (ml.int8_block, False)]
)


def ids_of(values):
    return ml.Tensor.from_numpy(np.array(values, np.int32))


def product(x, weight, dtype):
    """Compute what is promised: sums of integers, or the product with the dequantized weight."""
    if not by_integers(x.numpy(), weight):
        operand = ml.float32 if weight.dtype is ml.nf4 else x.dtype
        return ml.linear_transformation(x.to(operand), weight.dequantize(operand), dtype)
    rows = x.contiguous().numpy().reshape(-1, x.shape[-1])
    sums = integer_products(rows, weight).reshape(*x.shape[:-1], weight.shape[0])
    return ml.Tensor.from_numpy(sums.astype(dtype.numpy_dtype))


@FORMATS
@EVERY_FLOAT
@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 64), (0, 64)], ids=str)
def test_linear_has_the_bits_that_are_promised(block_dtype, double, dtype, shape):
    x, weight = sample(shape, dtype), ml.quantize(sample((9, 64), seed=1), block_dtype, double)
    operand = ml.bfloat16 if (dtype, block_dtype) == (ml.bfloat16, ml.int8_block) else ml.float32
    for result_dtype in (None, *FLOAT_DTYPES):
        result = ml.linear_transformation(x, weight, result_dtype)
        expected = product(x.to(operand), weight, result_dtype or dtype)
        check_same(result, expected.numpy())


@FORMATS
def test_linear_takes_views_biases_and_several_weights(block_dtype, double):
    x, bias = strided((5, 96), ml.bfloat16), sample((7,), seed=3)
    weights = [ml.quantize(sample((n, 96), seed=n), block_dtype, double and n == 7) for n in (7, 2)]
    first, second = ml.linear_transformations(x, weights, biases=(bias, None))
    sums = product(x, weights[0], ml.float32).numpy() + bias.numpy()
    check_same(first, sums.astype(ml.bfloat16.numpy_dtype))
    check_same(second, product(x, weights[1], ml.bfloat16).numpy())


@FORMATS
@pytest.mark.parametrize("ids", [[0], [4, 0, 4, 2], [], [[1, 2], [3, 4]], 3], ids=str)
@pytest.mark.parametrize("columns", [64, 33])
def test_get_rows_dequantizes_the_rows(block_dtype, double, ids, columns):
    table, numbers = ml.quantize(sample((5, columns)), block_dtype, double), ids_of(ids)
    for dtype in (None, *FLOAT_DTYPES):
        rows = ml.get_rows(table, numbers, dtype)
        plain = table.dequantize(dtype or ml.bfloat16).numpy()
        check_same(rows, np.asarray(plain[numbers.numpy()]))


def test_get_rows_of_a_plain_table_rounds_to_the_dtype_asked_for():
    table = sample((5, 3))
    rows = ml.get_rows(table, ids_of([4, 0]), ml.bfloat16)
    check_same(rows, table.to(ml.bfloat16).numpy()[[4, 0]])


def test_get_rows_refuses_what_does_not_fit():
    table = ml.quantize(sample((5, 64)), ml.nf4)
    with pytest.raises(ml.IndexOutOfRangeError, match=r"ids must be in \[0, 5\): 5"):
        ml.get_rows(table, ids_of([5]))
    with pytest.raises(ml.DTypeError, match=r"\[get_rows\] dtype= must be a real"):
        ml.get_rows(table, ids_of([4]), ml.int32)
    with pytest.raises(ml.ShapeError, match="ndim of a block-quantized table must equal 2: 1"):
        ml.get_rows(ml.quantize(sample((5,)), ml.nf4), ids_of([4]))


def test_linear_refuses_sizes_that_do_not_fit():
    weight = ml.quantize(sample((4, 64)), ml.nf4)
    with pytest.raises(ml.ShapeError) as caught:
        ml.linear_transformation(sample((2, 65)), weight)
    assert str(caught.value) == (
        "[linear_transformation] x.shape[-1] must equal weight.shape[1] of a weight [out, in]: "
        "65 != 64 (x [2, 65], weight [4, 64])"
    )
    with pytest.raises(ml.DTypeError, match="weights must have one dtype: nf4 != int8_block"):
        ml.linear_transformations(
            sample((2, 64)), [weight, ml.quantize(sample((4, 64)), ml.int8_block)]
        )
