"""Ops that move elements, or look at them in another shape, cut tensors or join them."""

from itertools import product

import numpy as np

from src import ml
from tests.ml.op_checks import EVERY_DTYPE, SHAPES, check_same, sample, samples


def shares_memory(view, x):
    return view.storage is x.storage


@EVERY_DTYPE
def test_squeeze_and_unsqueeze_are_numpys(dtype):
    for x in (x for shape in SHAPES for x in samples(shape, dtype)):
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


def test_permute_and_transpose_are_numpys():
    for x in (x for shape in SHAPES for x in samples(shape)):
        all_dims = range(x.ndim)
        for dims in (
            all_dims,
            range(-1, -x.ndim - 1, -1),
            (*all_dims[1:], *all_dims[:1]),
        ):
            view = ml.permute(x, tuple(dims))
            assert shares_memory(view, x)
            check_same(view, x.numpy().transpose(tuple(dims)))
            if x.ndim:
                check_same(x.permute(*dims), view.numpy())
        for a, b in product(range(-x.ndim, x.ndim), repeat=2):
            view = x.transpose(a, b)
            expected = x.numpy().swapaxes(a, b)
            assert shares_memory(view, x)
            assert x.size == 0 or view.strides == expected.strides
            check_same(view, expected)


def test_flatten_is_reshape():
    for x in (x for shape in SHAPES for x in samples(shape)):
        check_same(x.flatten(), x.numpy().reshape(x.size))
        for first in range(x.ndim):
            for last in range(first, x.ndim):
                joined = int(np.prod(x.shape[first : last + 1]))
                wanted = (*x.shape[:first], joined, *x.shape[last + 1 :])
                check_same(ml.flatten(x, first, last - x.ndim), x.numpy().reshape(wanted))
    assert shares_memory(ml.flatten(contiguous := sample((2, 3))), contiguous)


@EVERY_DTYPE
def test_expand_is_numpys_broadcast(dtype):
    for x in (x for shape in SHAPES for x in samples(shape, dtype)):
        wide = tuple(3 if n == 1 else n for n in x.shape)
        for sizes in (x.shape, wide, (2, *wide), (0, *wide)):
            view = ml.expand(x, sizes)
            assert shares_memory(view, x)
            check_same(view, np.broadcast_to(x.numpy(), sizes))
        check_same(x.expand(4, *[-1] * x.ndim), np.broadcast_to(x.numpy(), (4, *x.shape)))
    assert ml.expand(ml.ones(3, 1), 3, 4).strides == (4, 0)


@EVERY_DTYPE
def test_split_and_concatenate_are_inverse(dtype):
    for x in (x for shape in SHAPES for x in samples(shape, dtype)):
        for dim in range(-x.ndim, x.ndim):
            total = x.shape[dim]
            for size in (
                1,
                2,
                100,
                (total,),
                (0, total),
                (total // 2, total - total // 2),
            ):
                parts = ml.split(x, size, dim)
                assert all(shares_memory(part, x) for part in parts)
                check_same(ml.concatenate(parts, dim), x.numpy())
    assert all(
        shares_memory(x.slice(0, n), x) for x in samples((3, 4), dtype) for n in (2, 3)
    )
    assert [part.shape for part in ml.zeros(5, 2).split(2)] == [(2, 2), (2, 2), (1, 2)]
    assert [part.shape for part in ml.zeros(0).split(2)] == [(0,)]


@EVERY_DTYPE
def test_concatenate_and_stack_are_numpys(dtype):
    for shape in SHAPES:
        xs = [sample(shape, dtype, seed) for seed in range(3)]
        for dim in range(-len(shape) - 1, len(shape) + 1):
            check_same(ml.stack(xs, dim), np.stack([x.numpy() for x in xs], dim))
            check_same(ml.stack(tuple(xs[:1]), dim), np.expand_dims(xs[0].numpy(), dim))
        for dim in range(-len(shape), len(shape)):
            parts = [xs[0].transpose(dim, 0).slice(0, 0).transpose(dim, 0), *xs]
            expected = np.concatenate([x.bits() for x in parts], dim).view(
                dtype.numpy_dtype
            )
            check_same(ml.concatenate(parts, dim), expected)
            check_same(one := ml.concatenate(xs[:1], dim), xs[0].numpy())
            assert not np.shares_memory(one.numpy(), xs[0].numpy())
