"""Ops on one element, or on pairs of elements, at a time."""

import math

import ml_dtypes
import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    FLOAT_DTYPES,
    SHAPES,
    check_close,
    check_op,
    check_same,
    exact,
    rounded,
    sample,
    strided,
)

EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)
EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)
PAIRS = [
    ((3, 5), (5,)),
    ((5,), (3, 5)),
    ((3, 1), (1, 5)),
    ((), (3, 5)),
    ((2, 3, 4), ()),
    ((2, 3, 4), (3, 1)),
    ((0, 5), (1, 5)),
    ((1,), (0,)),
    ((2, 1, 4), (3, 1)),
]
SIMPLE = [(ml.add, np.add), (ml.multiply, np.multiply)]


def in_float32(function, a, b):
    """Compute in float32 and round once."""
    with np.errstate(all="ignore"):
        return function(a.numpy().astype(np.float32), b.numpy().astype(np.float32))


@pytest.mark.parametrize(("op", "function"), SIMPLE)
@EVERY_FLOAT
@EVERY_SHAPE
def test_floats_of_one_shape_are_computed_in_float32_and_rounded_once(op, function, dtype, shape):
    a, b = sample(shape, dtype), sample(shape, dtype, seed=1)
    check_same(op(a, b), np.asarray(in_float32(function, a, b)).astype(dtype.numpy_dtype))


@pytest.mark.parametrize(("op", "function"), SIMPLE)
@EVERY_FLOAT
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_floats_broadcast_as_in_numpy(op, function, dtype, left, right):
    a, b = sample(left, dtype), sample(right, dtype, seed=1)
    check_same(op(a, b), np.asarray(in_float32(function, a, b)).astype(dtype.numpy_dtype))


@pytest.mark.parametrize(("op", "function"), SIMPLE)
@pytest.mark.parametrize("dtype", [ml.int32, ml.uint16, ml.uint8], ids=str)
@pytest.mark.parametrize(("left", "right"), [((3, 5), (3, 5)), *PAIRS])
def test_integers_broadcast_and_wrap_around_as_in_numpy(op, function, dtype, left, right):
    a, b = sample(left, dtype), sample(right, dtype, seed=1)
    big = np.array(2**31 - 50 if dtype is ml.int32 else 200).astype(dtype.numpy_dtype)
    a = ml.Tensor.from_numpy(np.asarray(a.numpy() + big))
    expected = np.asarray(function(np.atleast_1d(a.numpy()), np.atleast_1d(b.numpy())))
    check_same(op(a, b), expected.reshape(np.broadcast_shapes(left, right)))


@pytest.mark.parametrize(("op", "function"), SIMPLE)
@pytest.mark.parametrize(("left", "right"), [((3, 5), (3, 5)), *PAIRS])
def test_complex_numbers_are_computed_part_by_part_in_float32(op, function, left, right):
    a, b = sample(left, ml.complex64), sample(right, ml.complex64, seed=1)
    result = op(a, b).numpy()
    x, y, u, v = a.numpy().real, a.numpy().imag, b.numpy().real, b.numpy().imag
    if op is ml.add:
        expected = (x + u) + 1j * (y + v)
    else:
        expected = np.empty(np.broadcast_shapes(left, right), np.complex64)
        expected.real, expected.imag = x * u - y * v, x * v + y * u
    assert np.array_equal(result, expected)
    assert np.allclose(result, function(exact(a), exact(b)), atol=1e-6)


@pytest.mark.parametrize(("op", "function"), SIMPLE)
@EVERY_DTYPE
def test_views_give_what_their_elements_give(op, function, dtype):
    a, b = strided((3, 5), dtype), strided((5, 3), dtype, seed=1).transpose(0, 1)
    check_same(op(a, b), op(a.contiguous(), b.contiguous()).numpy())


@pytest.mark.parametrize("op", [ml.add, ml.multiply, ml.swiglu])
@EVERY_FLOAT
def test_infinities_and_nans_go_through(op, dtype):
    special = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, 3e38]
    with np.errstate(over="ignore"):
        grid = np.array(np.meshgrid(special, special)).astype(dtype.numpy_dtype)
    a, b = ml.Tensor.from_numpy(grid[0].copy()), ml.Tensor.from_numpy(grid[1].copy())
    with np.errstate(all="ignore"):
        x, y = a.numpy().astype(np.float32), b.numpy().astype(np.float32)
        if op is ml.swiglu:
            expected = x / (1 + np.exp(-x)) * y
        else:
            expected = x + y if op is ml.add else x * y
        expected = expected.astype(dtype.numpy_dtype)
    result = op(a, b).numpy().astype(np.float64)
    finite = np.isfinite(expected.astype(np.float64))
    wanted = expected.astype(np.float64)
    assert np.array_equal(result[~finite], wanted[~finite], equal_nan=True)


@pytest.mark.parametrize("op", [ml.add, ml.multiply])
def test_dtypes_that_differ_are_refused(op):
    name = op.__name__
    with pytest.raises(ml.DTypeError) as caught:
        op(sample((2, 3)), sample((3,), ml.bfloat16))
    assert str(caught.value) == (
        f"[{name}] a.dtype must equal b.dtype: float32 != bfloat16 (a [2, 3], b [3])"
    )


@pytest.mark.parametrize("op", [ml.add, ml.multiply])
@EVERY_DTYPE
def test_shapes_that_do_not_broadcast_are_refused(op, dtype):
    with pytest.raises(ml.ShapeError) as caught:
        op(sample((2, 3), dtype), sample((4,), dtype))
    assert str(caught.value) == (
        f"[{op.__name__}] sizes must be equal or 1, aligned at the right: 3 != 4 (a [2, 3], b [4])"
    )


# ---- scalars ------------------------------------------------------------------------------------


@EVERY_FLOAT
@EVERY_SHAPE
def test_scalars_are_added_and_divided_in_float32_with_one_rounding(dtype, shape):
    x = sample(shape, dtype)
    values = x.numpy().astype(np.float32)
    check_same(ml.add(x, 0.1), np.asarray(values + np.float32(0.1)).astype(dtype.numpy_dtype))
    check_same(ml.div(x, 0.3), np.asarray(values / np.float32(0.3)).astype(dtype.numpy_dtype))


def test_scalars_next_to_integers_and_complex_numbers():
    check_same(ml.add(ml.arange(3), -5), np.array([-5, -4, -3], np.int32))
    check_same(ml.add(ml.full((2,), 250, ml.uint8), 10), np.full(2, 4, np.uint8))
    z = sample((3,), ml.complex64)
    check_same(ml.add(z, 1 - 1j), z.numpy() + np.complex64(1 - 1j))
    check_same(ml.div(z, 2), z.numpy() / np.complex64(2))


def test_scalars_next_to_views():
    x = strided((3, 5), ml.bfloat16)
    check_same(ml.div(x, 3.0), ml.div(x.contiguous(), 3.0).numpy())


def test_a_division_by_zero_is_infinite_or_nan_and_silent():
    x = ml.Tensor.from_numpy(np.array([1, -1, 0], np.float32))
    check_same(ml.div(x, 0), np.array([np.inf, -np.inf, np.nan], np.float32))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ml.add(ml.arange(3), 0.5),
            ml.DTypeError,
            "[add] value must be a number of the kind of int32: float",
        ),
        (
            lambda: ml.add(sample((2,)), 1j),
            ml.DTypeError,
            "[add] value must be a number of the kind of float32: complex",
        ),
        (
            lambda: ml.add(ml.zeros((2,), ml.uint8), 256),
            ml.TensorError,
            "[add] value must be in [0, 255] for uint8: 256",
        ),
        (
            lambda: ml.div(sample((2,)), "2"),
            ml.DTypeError,
            "[div] value must be a number of the kind of float32: str",
        ),
    ],
)
def test_scalars_that_do_not_fit_are_refused(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


# ---- one operand --------------------------------------------------------------------------------


def silu64(x):
    return x / (1 + np.exp(-x))


@EVERY_FLOAT
@EVERY_SHAPE
def test_silu_is_x_times_sigmoid(dtype, shape):
    check_op(ml.silu, silu64, sample(shape, dtype), terms=8)


@EVERY_FLOAT
def test_silu_of_a_view_and_of_large_values(dtype):
    check_op(ml.silu, silu64, strided((3, 5), dtype), terms=8)
    values = np.array([-1000, -80, -20, 0, 20, 1000, np.inf]).astype(dtype.numpy_dtype)
    check_op(ml.silu, silu64, ml.Tensor.from_numpy(values), terms=8)


def test_silu_of_every_bfloat16_is_within_half_a_unit():
    bits = np.arange(2**16, dtype=np.uint16)
    x = bits[np.isfinite(bits.view(ml_dtypes.bfloat16).astype(np.float32))]
    check_op(ml.silu, silu64, ml.Tensor.from_numpy(x.view(ml_dtypes.bfloat16)), terms=8)


@EVERY_FLOAT
@EVERY_SHAPE
def test_swiglu_is_silu_of_the_gate_times_up(dtype, shape):
    check_op(
        ml.swiglu,
        lambda g, u: silu64(g) * u,
        sample(shape, dtype),
        sample(shape, dtype, 1),
        terms=9,
    )


@EVERY_FLOAT
def test_swiglu_of_views(dtype):
    gate, up = strided((3, 5), dtype), strided((3, 5), dtype, seed=1)
    check_same(ml.swiglu(gate, up), ml.swiglu(gate.contiguous(), up.contiguous()).numpy())


@pytest.mark.parametrize(
    ("gate", "up", "error", "text"),
    [
        (
            sample((2, 3)),
            sample((3,)),
            ml.ShapeError,
            "[swiglu] gate.shape must equal up.shape: [2, 3] != [3]",
        ),
        (
            sample((2,)),
            sample((2,), ml.bfloat16),
            ml.DTypeError,
            "[swiglu] a.dtype must equal b.dtype: float32 != bfloat16 (a [2], b [2])",
        ),
        (
            sample((2,), ml.int32),
            sample((2,), ml.int32),
            ml.DTypeError,
            "[swiglu] dtype must be a real floating-point dtype: int32 (shape [2])",
        ),
    ],
)
def test_swiglu_refuses_what_does_not_fit(gate, up, error, text):
    with pytest.raises(error) as caught:
        ml.swiglu(gate, up)
    assert str(caught.value) == text


@pytest.mark.parametrize("op", [ml.silu, ml.rsqrt, lambda x: ml.pow(x, 2)])
@pytest.mark.parametrize("dtype", [ml.int32, ml.uint8, ml.complex64], ids=str)
def test_functions_of_floats_refuse_other_dtypes(op, dtype):
    with pytest.raises(
        ml.DTypeError, match=rf"dtype must be a real floating-point dtype: {dtype} \(shape"
    ):
        op(sample((2,), dtype))


def positive(x):
    """Clear the sign bit of floats."""
    bits = x.bits() & (x.dtype.bits_dtype.type(-1 % 2 ** (8 * x.dtype.itemsize)) >> 1)
    return ml.Tensor.from_numpy(np.asarray(bits).view(x.dtype.numpy_dtype))


@EVERY_FLOAT
@EVERY_SHAPE
def test_rsqrt_is_one_over_the_root(dtype, shape):
    x = positive(sample(shape, dtype))
    check_op(ml.rsqrt, lambda v: 1 / np.sqrt(v), x, terms=1)


def test_rsqrt_at_zero_and_below():
    x = ml.Tensor.from_numpy(np.array([0, -1, np.inf, np.nan], np.float32))
    check_same(ml.rsqrt(x), np.array([np.inf, np.nan, 0, np.nan], np.float32))


@EVERY_FLOAT
@EVERY_SHAPE
@pytest.mark.parametrize("exponent", [2, 0.5, -1, 0])
def test_pow_with_a_number_as_exponent(dtype, shape, exponent):
    x = positive(sample(shape, dtype))
    expected = rounded(np.power(exact(x), exponent), dtype)
    check_same(ml.pow(x, exponent), expected)


@EVERY_FLOAT
def test_pow_with_a_number_as_base_and_with_two_tensors(dtype):
    x = strided((3, 5), dtype)
    check_same(ml.pow(500000.0, x), rounded(np.power(500000.0, exact(x)), dtype))
    base = ml.full((5,), 2.5, dtype)
    check_same(ml.pow(base, x), rounded(np.power(2.5, exact(x)), dtype))


def test_pow_outside_of_the_reals_is_nan_or_infinite_and_silent():
    x = ml.Tensor.from_numpy(np.array([-1.0, 0.0], np.float32))
    check_same(ml.pow(x, 0.5), np.array([np.nan, 0], np.float32))
    check_same(ml.pow(x, -1), np.array([-1, np.inf], np.float32))


@pytest.mark.parametrize(
    ("base", "exponent", "error", "text"),
    [
        (2.0, 3.0, ml.TensorTypeError, "[pow] a or b must be a Tensor: float"),
        (
            sample((2,)),
            sample((2,), ml.bfloat16),
            ml.DTypeError,
            "[pow] a.dtype must equal b.dtype: float32 != bfloat16 (a [2], b [2])",
        ),
        (
            sample((2,)),
            sample((3,)),
            ml.ShapeError,
            "[pow] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])",
        ),
        (
            sample((2,)),
            "2",
            ml.DTypeError,
            "[pow] value must be a number of the kind of float32: str",
        ),
    ],
)
def test_pow_refuses_what_does_not_fit(base, exponent, error, text):
    with pytest.raises(error) as caught:
        ml.pow(base, exponent)
    assert str(caught.value) == text


# ---- outer and polar ----------------------------------------------------------------------------


@EVERY_DTYPE
@pytest.mark.parametrize(("n", "m"), [(3, 5), (1, 1), (0, 5), (5, 0)])
def test_outer_multiplies_each_with_each(dtype, n, m):
    a, b = sample((n,), dtype), sample((m,), dtype, seed=1)
    result = ml.outer(a, b)
    assert result.shape == (n, m)
    check_same(result, ml.multiply(a.reshape(n, 1), b.reshape(1, m)).numpy())


def test_outer_of_views():
    a = sample((9,))[::2]
    check_same(ml.outer(a, a), np.outer(a.numpy(), a.numpy()))


@pytest.mark.parametrize(
    ("a", "b", "error", "text"),
    [
        (
            sample((2, 1)),
            sample((3,)),
            ml.ShapeError,
            "[outer] a.ndim and b.ndim must equal 1: 2, 1 (a [2, 1], b [3])",
        ),
        (
            sample((2,)),
            sample((3,), ml.float16),
            ml.DTypeError,
            "[outer] a.dtype must equal b.dtype: float32 != float16 (a [2], b [3])",
        ),
    ],
)
def test_outer_refuses_what_does_not_fit(a, b, error, text):
    with pytest.raises(error) as caught:
        ml.outer(a, b)
    assert str(caught.value) == text


@EVERY_SHAPE
def test_polar_is_correctly_rounded_cosine_and_sine(shape):
    length, angle = sample(shape), sample(shape, seed=1)
    z = ml.polar(length, angle)
    assert z.dtype is ml.complex64
    real, imaginary = z.view_as_real()[..., 0], z.view_as_real()[..., 1]
    check_close(real, np.asarray(exact(length) * np.cos(exact(angle))))
    check_close(imaginary, np.asarray(exact(length) * np.sin(exact(angle))))


def test_polar_broadcasts_and_takes_large_angles():
    angle = ml.Tensor.from_numpy(np.array([[1e5], [131071.0]], np.float32))
    z = ml.polar(ml.ones((3,)), angle)
    assert z.shape == (2, 3)
    check_close(z.view_as_real()[..., 0], np.cos(exact(angle)) * np.ones(3))


@pytest.mark.parametrize(
    ("absolute", "angle", "error", "text"),
    [
        (
            sample((2,), ml.bfloat16),
            sample((2,)),
            ml.DTypeError,
            "[polar] dtype must equal float32: bfloat16 (shape [2])",
        ),
        (
            sample((2,)),
            sample((3,)),
            ml.ShapeError,
            "[polar] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])",
        ),
    ],
)
def test_polar_refuses_what_does_not_fit(absolute, angle, error, text):
    with pytest.raises(error) as caught:
        ml.polar(absolute, angle)
    assert str(caught.value) == text
