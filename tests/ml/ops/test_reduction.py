"""Ops along dimensions: sums, averages, extremes, softmax and norms."""

import math

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    EVERY_FLOAT,
    FLOAT_DTYPES,
    INTEGERS,
    SHAPES,
    SHAPES_AND_DIMS,
    check_op,
    check_same,
    exact,
    rounded,
    sample,
    samples,
)

FILLED = [(1,), (7,), (3, 5), (2, 3, 4), (1, 1, 1), (2, 3, 1, 5), (4, 33)]
FILLED_AND_DIMS = [
    (shape, dim) for shape in FILLED for dim in range(-len(shape), len(shape))
]


def dims_of(shape):
    """Yield choices of dimensions: all of them, each one, two, none."""
    yield from (
        None,
        (),
        *range(-len(shape), len(shape)),
        *((d,) for d in range(len(shape))),
    )
    if len(shape) > 1:
        yield (0, -1)


# ---- sums ------------------------------------------------------------------------------


@EVERY_FLOAT
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("op", [ml.sum, ml.mean], ids=lambda op: op.__name__)
def test_sum_and_mean_are_numpys(dtype, keepdim, op):
    for shape, dim in [(s, d) for s in SHAPES for d in dims_of(s)]:

        def added(x, dim=dim):
            count = np.ones(x.shape).sum(dim, keepdims=keepdim) if op is ml.mean else 1
            return x.sum(dim, keepdims=keepdim) / count

        for x in samples(shape, dtype):
            result = check_op(
                lambda x, dim=dim: op(x, dim, keepdim), added, x, terms=2, absolute=added
            )
            assert result.dtype is dtype
    assert op(ml.ones((10_000,), dtype)).item() == (
        1 if op is ml.mean else rounded(1e4, dtype)
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_and_bools_are_added_as_int64(dtype):
    x = sample((3, 4), dtype)
    check_same(ml.sum(x, 1), exact(x).sum(1))
    check_same(ml.cumsum(x, -1), exact(x).cumsum(-1))
    check_same(ml.sum(x > 50), np.asarray((exact(x) > 50).sum()))


def test_sum_of_another_dtype():
    x = sample((100,), ml.bfloat16)
    check_same(ml.sum(x, dtype=ml.float32), np.asarray(exact(x).sum().astype(np.float32)))
    assert ml.sum(ml.tensor([2**24, 1]), dtype="float32").dtype is ml.float32
    assert ml.sum(ml.tensor([1, 2j])).item() == 1 + 2j


@EVERY_FLOAT
def test_cumsum_is_numpys(dtype):
    for shape, dim in SHAPES_AND_DIMS:

        def added(x, dim=dim):
            return x.cumsum(dim)

        x = sample(shape, dtype)
        check_op(lambda x, dim=dim: ml.cumsum(x, dim), added, x, terms=1, absolute=added)


# ---- extremes --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, *INTEGERS], ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_are_numpys(dtype, name):
    for x in (x for shape in SHAPES if 0 not in shape for x in samples(shape, dtype)):
        best = getattr(ml, name)(x)
        assert (best.shape, best.item()) == ((), getattr(exact(x), name)())
        for dim in range(-x.ndim, x.ndim):
            for keepdim in (False, True):
                values, indices = getattr(ml, name)(x, dim, keepdim=keepdim)
                check_same(values, getattr(x.numpy(), name)(dim, keepdims=keepdim))
                check_same(
                    indices, getattr(exact(x), f"arg{name}")(dim, keepdims=keepdim)
                )
    values, indices = getattr(ml, name)(ml.zeros(0, 3), 1)
    assert values.shape == indices.shape == (0,)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_nan_and_bools(name):
    x = ml.tensor([[1.0, math.nan, 3.0], [5.0, 5.0, 2.0]])
    values, indices = getattr(ml, name)(x, 1)
    assert math.isnan(values.tolist()[0])
    assert indices.tolist() == [1, 0 if name == "max" else 2]
    assert math.isnan(getattr(x, name)().item())
    assert getattr(ml.tensor([True, False]), name)().item() is (name == "max")


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, *INTEGERS], ids=str)
def test_argmax_is_numpys(dtype):
    for shape, dim in FILLED_AND_DIMS:
        for x in samples(shape, dtype):
            check_same(
                ml.argmax(x, dim), np.asarray(exact(x).argmax(dim)).astype(np.int32)
            )
        check_same(ml.argmax(x), np.asarray(exact(x).argmax()).astype(np.int32))
    x = ml.Tensor.from_numpy(np.array([[3, 7, 7], [7, 7, 7]]).astype(dtype.numpy_dtype))
    assert ml.argmax(x, -1).tolist() == ml.argmax(x.transpose(0, 1), 0).tolist() == [1, 0]
    assert ml.argmax(sample((0, 3)), -1).shape == (0,)


@EVERY_FLOAT
def test_argmax_counts_a_nan_as_the_greatest_and_sees_infinities(dtype):
    rows = np.array(
        [
            [1, np.nan, np.inf, np.nan],
            [-np.inf] * 4,
            [-np.inf, -5, -np.inf, -5],
            [0, 1, np.inf, 2],
        ]
    ).astype(dtype.numpy_dtype)
    for dim, x in enumerate((np.ascontiguousarray(rows.T), rows)):
        assert ml.argmax(ml.Tensor.from_numpy(x), dim).tolist() == [1, 0, 1, 2]


# ---- softmax ---------------------------------------------------------------------------


def softmax64(x, dim=-1):
    powers = np.exp(x - x.max(dim, keepdims=True, initial=-np.inf))
    return powers / powers.sum(dim, keepdims=True)


def log_softmax64(x, dim=-1):
    x = x - x.max(dim, keepdims=True, initial=-np.inf)
    return x - np.log(np.exp(x).sum(dim, keepdims=True))


@pytest.mark.parametrize(
    ("op", "reference", "terms"),
    [(ml.softmax, softmax64, 50), (ml.log_softmax, log_softmax64, 1)],
)
@EVERY_FLOAT
def test_softmax_turns_any_dimension_into_weights(op, reference, terms, dtype):
    for shape, dim in [*SHAPES_AND_DIMS, *FILLED_AND_DIMS]:
        for x in samples(shape, dtype):
            result = check_op(
                lambda x, dim=dim: op(x, dim),
                lambda x, dim=dim: reference(x, dim),
                x,
                terms=terms,
            )
            assert result.dtype is dtype
    for target in FLOAT_DTYPES:
        x = sample((3, 40), dtype)
        result = check_op(
            lambda x, target=target: op(x, dtype=target), reference, x, terms=52
        )
        assert result.dtype is target


def test_a_sink_takes_part_in_the_softmax_of_its_matrix_and_has_no_weight():
    random = np.random.default_rng(5)
    x = random.standard_normal((3, 2, 21), dtype=np.float32)
    sinks = np.array([2.0, -math.inf, 60.0], np.float32)
    weights = ml.softmax(
        ml.Tensor.from_numpy(x), sinks=ml.Tensor.from_numpy(sinks)
    ).numpy()
    columns = np.repeat(sinks[:, None, None], 2, axis=1)
    expected = softmax64(np.concatenate([columns, x], axis=-1))[..., 1:]
    np.testing.assert_allclose(weights, expected, rtol=50 * 2.0**-24, atol=1e-40)
    plain = ml.softmax(ml.Tensor.from_numpy(x)).numpy()
    np.testing.assert_array_equal(weights[1], plain[1])
    assert weights[0].sum() < 0.95 * 2


def test_softmax_subtracts_the_maximum_so_large_scores_do_not_overflow():
    x = ml.Tensor.from_numpy(
        np.array([[1e38, 1e38, -1e38], [88.0, 89.0, 90.0]], np.float32)
    )
    check_op(ml.softmax, softmax64, x, terms=15)
    assert ml.log_softmax(ml.tensor([1000.0, 0.0, -math.inf])).tolist() == [
        0,
        -1000,
        -math.inf,
    ]


# ---- norms -----------------------------------------------------------------------------


def rms_norm64(x, weight, eps=1e-5):
    mean = (x * x).sum(-1, keepdims=True) / max(x.shape[-1], 1)
    return x / np.sqrt(mean + eps) * weight


@EVERY_FLOAT
@pytest.mark.parametrize("weight_dtype", [None, ml.float16, ml.float32], ids=str)
def test_rms_norm_scales_rows_to_a_root_mean_square_of_one(dtype, weight_dtype):
    for shape in (*(s for s in SHAPES if s), (4, 64), (2, 129)):
        for x in samples(shape, dtype):
            weight = sample((2 * shape[-1],), weight_dtype or dtype, seed=1)[::2]
            result = check_op(
                lambda a, w: ml.rms_norm(a, w, 1e-5),
                rms_norm64,
                x,
                weight,
                terms=shape[-1] + 8,
            )
            assert result.dtype is dtype
            for target in FLOAT_DTYPES if dtype is ml.float32 else ():  # rounded once
                narrow = ml.rms_norm(x, weight, 1e-5, dtype=target)
                check_same(narrow, result.to(target).numpy())
    assert (
        not ml.rms_norm(ml.zeros((2, 8), dtype), ml.ones((8,), dtype), 1e-5).numpy().any()
    )


@EVERY_FLOAT
def test_layer_norm_is_the_formula(dtype):
    for shape in (shape for shape in SHAPES if shape):
        for ndim in range(1, len(shape) + 1):
            sizes = shape[-ndim:]
            dims = tuple(range(-ndim, 0))

            def layer_norm(x, weight, bias, dims=dims):
                if x.size:
                    root = np.sqrt(x.var(dims, keepdims=True) + 1e-5)
                    x = (x - x.mean(dims, keepdims=True)) / root
                return x * weight + bias

            check_op(
                lambda x, w, b, sizes=sizes: ml.layer_norm(x, sizes, w, b),
                layer_norm,
                sample(shape, dtype), sample(sizes, dtype, 1), sample(sizes, dtype, 2),
                terms=4,
                absolute=lambda x, w, b: np.broadcast_to(8 * w + b, x.shape),
            )  # fmt: skip
        plain = ml.layer_norm(sample(shape, dtype), shape[-1])
        check_same(
            plain, ml.layer_norm(sample(shape, dtype), [shape[-1]], eps=1e-5).numpy()
        )


# ---- whole tensors ---------------------------------------------------------------------


def test_allclose_is_numpys():
    a = ml.tensor([1.0, 100.0, math.inf])
    assert ml.allclose(a, ml.tensor([1.0, 100.0005, math.inf]))
    assert not ml.allclose(a, ml.tensor([1.0, 100.01, math.inf]))
    assert ml.allclose(a, ml.tensor([1.0, 100.01, math.inf]), rtol=1e-3)
    assert ml.allclose(ml.tensor([0.0]), ml.tensor([1e-3]), atol=1e-2)
    assert not ml.allclose(ml.tensor([math.nan]), ml.tensor([math.nan]))
    assert ml.allclose(ml.tensor([math.nan]), ml.tensor([math.nan]), equal_nan=True)
    assert ml.zeros(0).allclose(ml.zeros(0))
    assert ml.allclose(ml.ones(3, dtype="bfloat16"), ml.ones((), dtype="bfloat16"))
