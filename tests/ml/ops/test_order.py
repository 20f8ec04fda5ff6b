"""Order and indices."""

import math

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import SHAPES, bits_of, check_same, sample, strided

SHAPES_AND_DIMS = [(shape, dim) for shape in SHAPES for dim in range(-len(shape), len(shape))]
ORDERED = [row for row in ml.DTYPES if row.kind != "complex"]


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(dtype, shape, dim, descending):
    for x in (sample(shape, dtype), *([strided(shape, dtype)] if len(shape) > 1 else [])):
        keys = x.numpy().astype(np.float64)
        order = np.argsort(-keys if descending else keys, dim, kind="stable")
        values, indices = ml.sort(x, dim, descending)
        assert indices.dtype is ml.int64
        assert (indices.numpy() == order).all()
        check_same(values, np.take_along_axis(x.numpy(), order, dim))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_nan_is_the_greatest(dtype):
    x = ml.tensor([1.0, math.nan, -math.inf, math.inf, math.nan, 1.0], dtype=dtype)
    assert ml.sort(x)[1].tolist() == [2, 0, 5, 3, 1, 4]
    assert ml.sort(x, descending=True)[1].tolist() == [1, 4, 3, 0, 5, 2]
    assert ml.topk(x, 3)[1].tolist() == [1, 4, 3]
    assert ml.topk(x, 3, largest=False)[1].tolist() == [2, 0, 5]


@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
@pytest.mark.parametrize("largest", [False, True])
def test_topk_is_the_beginning_of_sort(shape, dim, largest):
    x = sample(shape)
    values, indices = ml.sort(x, dim, descending=largest)
    for k in {0, 1, shape[dim]} & set(range(shape[dim] + 1)):
        best, places = ml.topk(x, k, dim, largest)
        check_same(best, np.take(values.numpy(), range(k), dim))
        check_same(places, np.take(indices.numpy(), range(k), dim))


@pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)
@pytest.mark.parametrize("ids", [ml.int32, ml.int64], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_gather_picks_along_a_dimension(dtype, ids, shape, dim):
    x = sample(shape, dtype)
    sizes = list(shape)
    sizes[dim] = 4 if shape[dim] else 0
    high = max(shape[dim], 1)
    index = np.random.default_rng(0).integers(0, high, sizes).astype(ids.numpy_dtype)
    result = ml.gather(x, dim, ml.Tensor.from_numpy(index))
    assert (bits_of(result) == np.take_along_axis(bits_of(x), index, dim)).all()


def test_gather_takes_an_index_of_fewer_rows():
    x = ml.arange(12).reshape(3, 4)
    assert ml.gather(x, 1, ml.tensor([[3, 0], [1, 1]])).tolist() == [[3, 0], [5, 5]]
    assert ml.gather(x, 1, ml.zeros(0, 4, dtype="int64")).shape == (0, 4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ml.sort(ml.ones(())), ml.IndexOutOfRangeError, "[sort] dim must be in [0, 0): -1"),
        (
            lambda: ml.sort(ml.tensor([1j])),
            ml.DTypeError,
            "[sort] dtype must be of kind float or int or bool: complex64 (shape [1])",
        ),
        (lambda: ml.sort(5), ml.TensorTypeError, "[sort] x must be a Tensor: int"),
        (
            lambda: ml.topk(ml.ones(2, 3), 4),
            ml.ShapeError,
            "[topk] 0 <= k <= shape[1] must hold: 4 (shape [2, 3])",
        ),
        (lambda: ml.topk(ml.ones(3), 1.0), ml.ShapeError, "[topk] k must be integers: (1.0,)"),
        (
            lambda: ml.gather(ml.ones(3), 0, ml.ones(2)),
            ml.DTypeError,
            "[gather] index.dtype must be int32 or int64: float32",
        ),
        (
            lambda: ml.gather(ml.ones(3), 0, ml.tensor([0, 3])),
            ml.IndexOutOfRangeError,
            "[gather] index along dim 0 must be in [0, 3): 3 (x [3])",
        ),
        (
            lambda: ml.gather(ml.ones(3), 0, ml.tensor([-1])),
            ml.IndexOutOfRangeError,
            "[gather] index along dim 0 must be in [0, 3): -1 (x [3])",
        ),
        (
            lambda: ml.gather(ml.ones(3, 1), 0, ml.tensor([[0, 0]])),
            ml.ShapeError,
            "[gather] index.shape must be <= x.shape outside of dim 0: [1, 2] > [3, 1]",
        ),
    ],
)
def test_order_and_indices_refuse_what_does_not_fit(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
