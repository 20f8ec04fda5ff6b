"""Ops that pick elements: by index, by order, by place."""

import math
from itertools import product

import numpy as np
import pytest

from src import ml
from tests.csrc.quantized_operands import FORMATS
from tests.ml.op_checks import (
    EVERY_DTYPE,
    FLOAT_DTYPES,
    SHAPES,
    SHAPES_AND_DIMS,
    bits_of,
    check_same,
    sample,
    samples,
    strided,
)

ORDERED = [row for row in ml.DTYPES if row.kind != "complex"]
IDS = [[0], [4, 0, 4, 2], [], [[1, 2], [3, 4]], 3]


def ids_of(values):
    return ml.Tensor.from_numpy(np.array(values, np.int32))


# ---- get_rows --------------------------------------------------------------------------


@EVERY_DTYPE
def test_get_rows_picks_rows_in_order(dtype):
    for shape in ((5, 3), (5,), (5, 2, 3), (5, 0)):
        for table in samples(shape, dtype):
            for ids in IDS:
                expected = np.asarray(table.numpy()[np.array(ids, np.int32)])
                check_same(ml.get_rows(table, ids_of(ids)), expected)
    table = sample((5, 3), ml.bfloat16)
    check_same(ml.get_rows(table, ids_of([4, 9, 0, 9])[::2]), table.numpy()[[4, 0]])


def test_the_rows_are_copies_and_rounded_to_the_dtype_asked_for():
    table = sample((5, 3))
    before = table.numpy().copy()
    ml.get_rows(table, ids_of([0])).set_slice(0, 1, 5.0)
    check_same(table, before)
    rows = ml.get_rows(table, ids_of([4, 0]), ml.bfloat16)
    check_same(rows, table.to(ml.bfloat16).numpy()[[4, 0]])
    assert ml.get_rows(sample((0, 3)), ids_of([])).shape == (0, 3)


@pytest.mark.parametrize(("block_dtype", "double"), FORMATS)
@pytest.mark.parametrize("columns", [64, 33])
def test_get_rows_dequantizes_the_rows(block_dtype, double, columns):
    table = ml.quantize(sample((5, columns)), block_dtype, double)
    for dtype in (None, *FLOAT_DTYPES):
        plain = table.dequantize(dtype or ml.bfloat16).numpy()
        for ids in IDS:
            expected = np.asarray(plain[np.array(ids, np.int32)])
            check_same(ml.get_rows(table, ids_of(ids), dtype), expected)


@pytest.mark.parametrize(
    ("ids", "wrong"), [([5], 5), ([0, -1], -1), ([7, -3], -3), ([2**31 - 1], 2**31 - 1)]
)
def test_get_rows_reads_no_row_that_is_not_there(ids, wrong):
    for table in (sample((5, 3)), ml.quantize(sample((5, 64)), ml.nf4)):
        text = rf"^\[get_rows\] ids must be in \[0, 5\): {wrong} \(table \[5, "
        with pytest.raises(ml.IndexOutOfRangeError, match=text):
            ml.get_rows(table, ids_of(ids))


# ---- order -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_topk_its_beginning(dtype, descending):
    for shape, dim in SHAPES_AND_DIMS:
        for x in samples(shape, dtype):
            keys = x.numpy().astype(np.float64)
            order = np.argsort(-keys if descending else keys, dim, kind="stable")
            values, indices = ml.sort(x, dim, descending)
            check_same(indices, order)
            check_same(values, np.take_along_axis(x.numpy(), order, dim))
            for k in {0, 1, shape[dim]} & set(range(shape[dim] + 1)):
                best, places = ml.topk(x, k, dim, descending)
                check_same(best, np.take(values.numpy(), range(k), dim))
                check_same(places, np.take(order, range(k), dim))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_nan_is_the_greatest(dtype):
    x = ml.tensor([1.0, math.nan, -math.inf, math.inf, math.nan, 1.0], dtype=dtype)
    assert ml.sort(x)[1].tolist() == [2, 0, 5, 3, 1, 4]
    assert ml.sort(x, descending=True)[1].tolist() == [1, 4, 3, 0, 5, 2]
    assert ml.topk(x, 3)[1].tolist() == [1, 4, 3]
    assert ml.topk(x, 3, largest=False)[1].tolist() == [2, 0, 5]


@EVERY_DTYPE
@pytest.mark.parametrize("ids", [ml.int32, ml.int64], ids=str)
def test_gather_picks_along_a_dimension(dtype, ids):
    for shape, dim in SHAPES_AND_DIMS:
        x = sample(shape, dtype)
        sizes = list(shape)
        sizes[dim] = 4 if shape[dim] else 0
        index = np.random.default_rng(0).integers(0, max(shape[dim], 1), sizes)
        index = index.astype(ids.numpy_dtype)
        result = ml.gather(x, dim, ml.Tensor.from_numpy(index))
        assert (bits_of(result) == np.take_along_axis(bits_of(x), index, dim)).all()
    x = ml.arange(12).reshape(3, 4)
    assert ml.gather(x, 1, ml.tensor([[3, 0], [1, 1]])).tolist() == [[3, 0], [5, 5]]
    assert ml.gather(x, 1, ml.zeros(0, 4, dtype="int64")).shape == (0, 4)


# ---- triangles -------------------------------------------------------------------------


@EVERY_DTYPE
def test_tril_and_triu_are_numpys(dtype):
    for shape in (shape for shape in [*SHAPES, (2, 5), (5, 2)] if len(shape) > 1):
        for x, diagonal in product(samples(shape, dtype), (-10, -1, 0, 1, 2, 10)):
            check_same(ml.tril(x, diagonal), np.tril(x.numpy(), diagonal))
            check_same(ml.triu(x, diagonal), np.triu(x.numpy(), diagonal))


def test_triu_of_infinities_gives_zeros_not_nan():
    x = ml.full((4, 3), -math.inf)
    check_same(ml.triu(x, 1), np.triu(np.full((4, 3), -np.inf, np.float32), 1))
    check_same(ml.triu(strided((4, 3)), 1), np.triu(strided((4, 3)).numpy(), 1))


# ---- where -----------------------------------------------------------------------------


@EVERY_DTYPE
def test_where_chooses_bit_for_bit(dtype):
    for shape in SHAPES:
        a = sample(shape, dtype)
        b = sample(shape, dtype, seed=1)
        condition = sample(shape) > 0
        expected = np.where(condition.numpy(), bits_of(a), bits_of(b))
        assert (bits_of(ml.where(condition, a, b)) == expected).all()


def test_where_takes_numbers_and_broadcasts():
    condition = ml.tensor([[True], [False]])
    assert ml.where(condition, ml.tensor([1.0, 2.0]), 0).tolist() == [[1, 2], [0, 0]]
    assert ml.where(condition, 1.0, 0).dtype is ml.float32
    assert ml.where(condition, 1, 0).dtype is ml.int64
    assert ml.where(ml.tensor([]) > 0, 1, 0).shape == (0,)


def test_getitem_is_the_index_operator():
    x = ml.tensor([[1.0, 2.0], [3.0, 4.0]])
    key = ml.tensor([1, 0, 1])
    assert ml.getitem(x, key).tolist() == x[key].tolist() == [[3, 4], [1, 2], [3, 4]]
