"""Ops that look at elements in another shape, cut tensors, or join them along a new dimension."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import SHAPES, check_same, sample, strided

EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)


def shares_memory(view, x):
    return view.storage is x.storage


def samples(shape, dtype=ml.float32):
    yield sample(shape, dtype)
    if len(shape) > 1:
        yield strided(shape, dtype)


@EVERY_DTYPE
@EVERY_SHAPE
def test_squeeze_and_unsqueeze_are_numpys(dtype, shape):
    for x in samples(shape, dtype):
        assert shares_memory(x.squeeze(), x)
        check_same(x.squeeze(), x.numpy().squeeze())
        for dim in range(-x.ndim - 1, x.ndim + 1):
            wide = x.unsqueeze(dim)
            assert shares_memory(wide, x)
            check_same(wide, np.expand_dims(x.numpy(), dim))
            check_same(wide.squeeze(dim), x.numpy())
            check_same(wide.contiguous(), np.expand_dims(x.numpy(), dim))
    assert ml.squeeze(ml.zeros(2, 1, 1), 0).shape == (2, 1, 1)
    assert ml.squeeze(ml.zeros(2, 1, 1), (0, 1)).shape == (2, 1)


@EVERY_SHAPE
def test_permute_is_numpys(shape):
    for x in samples(shape):
        for dims in (
            range(x.ndim),
            range(-1, -x.ndim - 1, -1),
            (*range(1, x.ndim), *range(x.ndim)[:1]),
        ):
            view = ml.permute(x, tuple(dims))
            assert shares_memory(view, x)
            check_same(view, x.numpy().transpose(tuple(dims)))
            if x.ndim:
                check_same(x.permute(*dims), view.numpy())


@EVERY_SHAPE
def test_flatten_is_reshape(shape):
    for x in samples(shape):
        check_same(x.flatten(), x.numpy().reshape(x.size))
        for first in range(x.ndim):
            for last in range(first, x.ndim):
                sizes = shape[first : last + 1]
                wanted = (*shape[:first], int(np.prod(sizes)), *shape[last + 1 :])
                check_same(ml.flatten(x, first, last - x.ndim), x.numpy().reshape(wanted))
    assert shares_memory(ml.flatten(contiguous := sample((2, 3))), contiguous)


@EVERY_DTYPE
@EVERY_SHAPE
def test_expand_is_numpys_broadcast(dtype, shape):
    for x in samples(shape, dtype):
        wide = tuple(3 if n == 1 else n for n in shape)
        for sizes in (shape, wide, (2, *wide), (0, *wide)):
            view = ml.expand(x, sizes)
            assert shares_memory(view, x)
            check_same(view, np.broadcast_to(x.numpy(), sizes))
        check_same(x.expand(4, *[-1] * x.ndim), np.broadcast_to(x.numpy(), (4, *shape)))
    assert ml.expand(ml.ones(3, 1), 3, 4).strides == (4, 0)


@EVERY_DTYPE
@EVERY_SHAPE
def test_split_and_concatenate_are_inverse(dtype, shape):
    for x in samples(shape, dtype):
        for dim in range(-x.ndim, x.ndim):
            total = shape[dim]
            for size in (1, 2, 100, (total,), (0, total), (total // 2, total - total // 2)):
                parts = ml.split(x, size, dim)
                assert all(shares_memory(part, x) for part in parts)
                check_same(ml.concatenate(parts, dim), x.numpy())
    assert [part.shape for part in ml.zeros(5, 2).split(2)] == [(2, 2), (2, 2), (1, 2)]
    assert [part.shape for part in ml.zeros(0).split(2)] == [(0,)]


@EVERY_DTYPE
@EVERY_SHAPE
def test_stack_is_numpys(dtype, shape):
    xs = [sample(shape, dtype, seed) for seed in range(3)]
    for dim in range(-len(shape) - 1, len(shape) + 1):
        check_same(ml.stack(xs, dim), np.stack([x.numpy() for x in xs], dim))
        check_same(ml.stack(tuple(xs[:1]), dim), np.expand_dims(xs[0].numpy(), dim))


X = ml.zeros(2, 1, 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: X.squeeze(3), ml.IndexOutOfRangeError, "[squeeze] dim must be in [-3, 3): 3"),
        (lambda: X.unsqueeze(4), ml.IndexOutOfRangeError, "[unsqueeze] dim must be in [-4, 4): 4"),
        (lambda: X.unsqueeze("a"), ml.ShapeError, "[unsqueeze] dim must be integers: ('a',)"),
        (
            lambda: X.permute(0, 1),
            ml.ShapeError,
            "[permute] dims must be each of [0, 3) once: [0, 1]",
        ),
        (
            lambda: X.permute(0, 1, -2),
            ml.ShapeError,
            "[permute] dims must be each of [0, 3) once: [0, 1, 1]",
        ),
        (lambda: X.flatten(2, 1), ml.ShapeError, "[flatten] start_dim must be <= end_dim: 2 > 1"),
        (
            lambda: X.expand(2, 4, 4),
            ml.ShapeError,
            "[expand] sizes must equal x.shape, aligned at the right, where it is not 1: "
            "[2, 4, 4] (shape [2, 1, 3])",
        ),
        (
            lambda: X.expand(1, 3),
            ml.ShapeError,
            "[expand] sizes must equal x.shape, aligned at the right, where it is not 1: "
            "[1, 3] (shape [2, 1, 3])",
        ),
        (
            lambda: X.expand(-1, 2, 1, 3),
            ml.ShapeError,
            "[expand] sizes must be >= 0: [-1, 2, 1, 3]",
        ),
        (
            lambda: ml.ones(()).expand(2**31, 2**31),
            ml.ShapeError,
            f"[shape] bytes must be <= {2**63 - 1}: {2**64} (shape [{2**31}, {2**31}])",
        ),
        (lambda: X.split(0), ml.ShapeError, "[split] split_size must be >= 1: 0"),
        (
            lambda: X.split((1, 2), 2) and X.split((2, 2), 2),
            ml.ShapeError,
            "[split] sizes must add up to shape[2]: 4 != 3 (shape [2, 1, 3])",
        ),
        (lambda: ml.stack([]), ml.ShapeError, "[stack] number of tensors must be >= 1: 0"),
        (
            lambda: ml.stack(5),
            ml.TensorTypeError,
            "[stack] tensors must be a sequence of Tensors: int",
        ),
        (lambda: ml.stack([X, 5]), ml.TensorTypeError, "[stack] tensors must be a Tensor: int"),
        (
            lambda: ml.stack([X, ml.zeros(3)]),
            ml.ShapeError,
            "[stack] shapes must be equal: [2, 1, 3] != [3]",
        ),
        (
            lambda: ml.concatenate(None),
            ml.TensorTypeError,
            "[concatenate] tensors must be a sequence of Tensors: NoneType",
        ),
    ],
)
def test_views_refuse_what_does_not_fit(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
