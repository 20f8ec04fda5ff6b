"""Ops that pick rows by number."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import check_same, sample, strided

EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)


def ids_of(values):
    return ml.Tensor.from_numpy(np.array(values, np.int32))


@EVERY_DTYPE
@pytest.mark.parametrize("ids", [[0], [4, 0, 4, 2], [], [[1, 2], [3, 4]], 3])
@pytest.mark.parametrize("shape", [(5, 3), (5,), (5, 2, 3), (5, 0)])
def test_get_rows_picks_rows_in_order(dtype, ids, shape):
    table, numbers = sample(shape, dtype), ids_of(ids)
    check_same(ml.get_rows(table, numbers), np.asarray(table.numpy()[numbers.numpy()]))


def test_get_rows_of_views():
    table = strided((5, 4), ml.bfloat16)
    ids = ids_of([4, 9, 0, 9])[::2]
    check_same(ml.get_rows(table, ids), np.ascontiguousarray(table.numpy()[[4, 0]]))


def test_the_rows_are_copies():
    table = ml.zeros((2, 3))
    rows = ml.get_rows(table, ids_of([0]))
    rows.set_slice(0, 1, 5.0)
    assert not table.numpy().any()


@pytest.mark.parametrize(
    ("ids", "wrong"), [([5], 5), ([0, -1], -1), ([7, -3], -3), ([2**31 - 1], 2**31 - 1)]
)
def test_get_rows_reads_no_row_that_is_not_there(ids, wrong):
    with pytest.raises(ml.IndexOutOfRangeError) as caught:
        ml.get_rows(sample((5, 3)), ids_of(ids))
    assert str(caught.value) == (
        f"[get_rows] ids must be in [0, 5): {wrong} (table [5, 3], ids [{len(ids)}])"
    )


def test_an_empty_table_has_no_rows():
    with pytest.raises(ml.IndexOutOfRangeError, match=r"ids must be in \[0, 0\): 0"):
        ml.get_rows(sample((0, 3)), ids_of([0]))
    assert ml.get_rows(sample((0, 3)), ids_of([])).shape == (0, 3)


@pytest.mark.parametrize(
    ("table", "ids", "error", "text"),
    [
        (
            sample((5, 3)),
            sample((2,), ml.uint16),
            ml.DTypeError,
            "[get_rows] ids.dtype must equal int32: uint16 (ids [2])",
        ),
        (
            sample(()),
            ids_of([0]),
            ml.ShapeError,
            "[get_rows] ndim must be >= 1: 0 (shape [])",
        ),
    ],
)
def test_get_rows_refuses_what_does_not_fit(table, ids, error, text):
    with pytest.raises(error) as caught:
        ml.get_rows(table, ids)
    assert str(caught.value) == text
