"""Ops on one element, or on pairs of elements, at a time, against NumPy."""

import math
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import (
    EVERY_DTYPE,
    EVERY_FLOAT,
    INTEGERS,
    SHAPES,
    check_close,
    check_op,
    check_same,
    exact,
    rounded,
    sample,
    samples,
    strided,
)

PAIRS = [
    ((3, 5), (3, 5)),
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
BINARY = {
    ml.add: np.add,
    ml.sub: np.subtract,
    ml.multiply: np.multiply,
    ml.div: np.divide,
}
EVERY_BINARY = pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
erf = np.vectorize(math.erf, otypes=[float])
CUBE = 0.044715  # of the approximation of GELU
# The function in float64, and how many roundings of float32 may add up.
UNARY = {
    "gelu": (lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, 1),
    "gelu_by_tanh": (
        lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + CUBE * x**3))) / 2,
        1,
    ),
    "relu": (lambda x: np.maximum(x, 0), 0),
    "silu": (lambda x: x / (1 + np.exp(-x)), 8),
}
SPECIAL = [math.nan, math.inf, 0.0, -0.0, 1e38, -1e-40, 10.5, -1000.0, -20.0]


def special(dtype, largest):
    """Two tensors [7, 7] in which each special number meets each."""
    numbers = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, largest]
    with np.errstate(over="ignore"):
        grid = np.array(np.meshgrid(numbers, numbers)).astype(dtype.numpy_dtype)
    return [ml.Tensor.from_numpy(part.copy()) for part in grid]


@EVERY_BINARY
@EVERY_FLOAT
def test_floats_and_numbers_broadcast_in_float32_and_are_rounded_once(op, dtype):
    shapes = [*PAIRS, *((shape, shape) for shape in SHAPES)]
    pairs = [
        (sample(left, dtype), sample(right, dtype, seed=1)) for left, right in shapes
    ]
    pairs += [(sample(shape, dtype), number) for shape in SHAPES for number in (0.3, 0)]
    for a, b in [*pairs, special(dtype, 3e38)]:
        left, right = (
            x.numpy().astype(np.float32) if isinstance(x, ml.Tensor) else np.float32(x)
            for x in (a, b)
        )
        with np.errstate(all="ignore"):
            check_same(
                op(a, b), np.asarray(BINARY[op](left, right)).astype(dtype.numpy_dtype)
            )


@pytest.mark.parametrize("op", [ml.add, ml.sub, ml.multiply], ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_broadcast_and_wrap_around_as_in_numpy(op, dtype):
    big = np.array(np.iinfo(dtype.numpy_dtype).max - 50).astype(dtype.numpy_dtype)
    for left, right in PAIRS:
        a = sample(left, dtype).numpy() + big
        b = sample(right, dtype, seed=1).numpy()
        expected = np.asarray(BINARY[op](np.atleast_1d(a), np.atleast_1d(b)))
        result = op(ml.Tensor.from_numpy(np.asarray(a)), ml.Tensor.from_numpy(b))
        check_same(result, expected.reshape(np.broadcast_shapes(left, right)))


@pytest.mark.parametrize("op", [ml.add, ml.multiply], ids=lambda op: op.__name__)
def test_complex_numbers_are_computed_part_by_part_in_float32(op):
    for left, right in PAIRS:
        a = sample(left, ml.complex64)
        b = sample(right, ml.complex64, seed=1)
        x = a.numpy().real
        y = a.numpy().imag
        u = b.numpy().real
        v = b.numpy().imag
        expected = np.empty(np.broadcast_shapes(left, right), np.complex64)
        if op is ml.add:
            expected.real = x + u
            expected.imag = y + v
        else:
            expected.real = x * u - y * v
            expected.imag = x * v + y * u
        assert np.array_equal(op(a, b).numpy(), expected)
        assert np.allclose(expected, BINARY[op](exact(a), exact(b)), atol=1e-6)


@EVERY_DTYPE
def test_views_give_what_their_elements_give(dtype):
    a = strided((3, 5), dtype)
    b = strided((5, 3), dtype, seed=1).transpose(0, 1)
    for op in (ml.add, ml.multiply):
        check_same(op(a, b), op(a.contiguous(), b.contiguous()).numpy())
    check_same(ml.div(a, 3), ml.div(a.contiguous(), 3).numpy())


def test_numbers_next_to_integers_and_complex_numbers():
    check_same(ml.add(ml.arange(3), -5), np.array([-5, -4, -3], np.int32))
    check_same(ml.add(ml.full((2,), 250, ml.uint8), 10), np.full(2, 4, np.uint8))
    z = sample((3,), ml.complex64)
    check_same(ml.add(z, 1 - 1j), z.numpy() + np.complex64(1 - 1j))
    check_same(ml.div(z, 2), z.numpy() / np.complex64(2))


# ---- one operand -----------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY)
@EVERY_FLOAT
def test_functions_are_numpys(name, dtype):
    op = getattr(ml, name, partial(ml.gelu, approximate="tanh"))
    function, terms = UNARY[name]
    with np.errstate(over="ignore"):
        special = ml.Tensor.from_numpy(np.array(SPECIAL).astype(dtype.numpy_dtype))
    for x in (special, *(x for shape in SHAPES for x in samples(shape, dtype))):
        assert check_op(op, function, x, terms=terms).dtype is dtype


def test_silu_of_every_bfloat16_is_within_half_a_unit():
    bits = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    x = ml.Tensor.from_numpy(bits[np.isfinite(bits.astype(np.float32))])
    check_op(ml.silu, UNARY["silu"][0], x, terms=8)


@EVERY_FLOAT
def test_swiglu_is_silu_of_the_gate_times_up(dtype):
    for shape in SHAPES:
        pairs = zip(samples(shape, dtype), samples(shape, dtype, seed=1), strict=True)
        for gate, up in (*pairs, special(dtype, 1e19)):
            check_op(ml.swiglu, lambda g, u: UNARY["silu"][0](g) * u, gate, up, terms=9)


def gelu_by_tanh(x):
    return x * np.exp(-np.logaddexp(0, -2 * math.sqrt(2 / math.pi) * (x + CUBE * x**3)))


@EVERY_FLOAT
def test_geglu_is_gelu_of_the_gate_times_up(dtype):
    for shape in SHAPES:
        pairs = zip(samples(shape, dtype), samples(shape, dtype, seed=1), strict=True)
        for gate, up in pairs:
            check_op(ml.geglu, lambda g, u: gelu_by_tanh(g) * u, gate, up, terms=60)


def clamped_swiglu(gate, up):
    gate = np.minimum(gate, 7)
    return (np.clip(up, -7, 7) + 1) * UNARY["silu"][0](1.702 * gate) / 1.702


@EVERY_FLOAT
def test_clamped_swiglu_limits_gate_and_up(dtype):
    for shape in SHAPES:
        pairs = zip(samples(shape, dtype), samples(shape, dtype, seed=1), strict=True)
        for gate, up in (*pairs, special(dtype, 1e19)):
            check_op(ml.clamped_swiglu, clamped_swiglu, gate, up, terms=40)


@EVERY_FLOAT
def test_soft_cap_is_a_scaled_tanh(dtype):
    for shape in SHAPES:
        for x in samples(shape, dtype):
            capped = check_op(
                lambda x: ml.soft_cap(x, 2.0), lambda x: 2 * np.tanh(x / 2), x, terms=8
            )
            assert capped.dtype is dtype
            assert capped.shape == shape


def test_gelu_turns_integers_into_float32():
    x = sample((3, 4), ml.int32)
    check_same(ml.gelu(x), ml.gelu(x.to(ml.float32)).numpy())


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_clipped_exactly(dtype):
    x = sample((3, 4), dtype)
    check_same(ml.clip(x, 10, 20), np.clip(x.numpy(), 10, 20))
    check_same(ml.relu(x), np.maximum(x.numpy(), 0))


@EVERY_FLOAT
def test_clip_moves_into_a_range_and_keeps_nan(dtype):
    for low, high in ((-0.5, None), (None, 0.25), (-0.5, 0.25), (0.5, -0.5)):
        for x in (sample((4, 5), dtype), ml.full((1,), math.nan, dtype)):
            clipped = partial(ml.clip, min=low, max=high)
            check_op(clipped, partial(np.clip, a_min=low, a_max=high), x)


# ---- pow, outer and polar --------------------------------------------------------------


@EVERY_FLOAT
def test_pow_is_numpys_rounded_by_way_of_float32(dtype):
    def check(base, exponent):
        values = [exact(x) if isinstance(x, ml.Tensor) else x for x in (base, exponent)]
        with np.errstate(all="ignore"):
            check_same(ml.pow(base, exponent), rounded(np.power(*values), dtype))

    for x in (x for shape in SHAPES for x in samples(shape, dtype)):
        for exponent in (2, 0.5, -1, 0):
            check(ml.abs(x), exponent)
        check(500000.0, x)
        check(ml.full(x.shape, 2.5, dtype), x)
    check(ml.full((), 2.5, dtype), strided((3, 5), dtype))
    check(ml.tensor([-1.0, 0.0], dtype), 0.5)
    check(ml.tensor([-1.0, 0.0], dtype), -1)


@EVERY_DTYPE
def test_outer_multiplies_each_with_each(dtype):
    for n, m in ((3, 5), (1, 1), (0, 5), (5, 0)):
        a = sample((2 * n,), dtype)[::2]
        b = sample((m,), dtype, seed=1)
        expected = ml.multiply(a.reshape(n, 1), b.reshape(1, m)).numpy()
        assert expected.shape == (n, m)
        check_same(ml.outer(a, b), expected)


def test_polar_is_correctly_rounded_cosine_and_sine():
    large = ml.tensor([[1e5], [131071.0]])
    for length, angle in [
        *((sample(s), sample(s, seed=1)) for s in SHAPES),
        (ml.ones(3), large),
    ]:
        z = ml.polar(length, angle)
        assert z.dtype is ml.complex64
        for part, function in enumerate((np.cos, np.sin)):
            expected = np.asarray(exact(length) * function(exact(angle)))
            check_close(z.view_as_real()[..., part], expected)


def test_bitwise_not_is_the_operator():
    mask = ml.tensor([True, False])
    assert ml.bitwise_not(mask).tolist() == (~mask).tolist() == [False, True]
    assert ml.bitwise_not(ml.tensor([0, 5, -1])).tolist() == [-1, -6, 0]
