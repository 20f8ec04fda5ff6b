"""Ops that move or convert elements."""

import ml_dtypes
import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import FLOAT_DTYPES, SHAPES, check_same, rounded, sample, strided

EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)


@EVERY_DTYPE
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_concatenate_joins_along_any_dimension(dtype, dim):
    shapes = [[2, 3, 4] for _ in range(3)]
    for n, shape in enumerate(shapes):
        shape[dim] = n  # the first one is empty
    tensors = [sample(tuple(shape), dtype, seed) for seed, shape in enumerate(shapes)]
    expected = np.concatenate([x.bits() for x in tensors], dim).view(dtype.numpy_dtype)
    check_same(ml.concatenate(tensors, dim), expected)


def test_concatenate_of_one_tensor_is_a_copy_and_takes_views():
    x = strided((3, 5))
    y = ml.concatenate([x])
    check_same(y, np.ascontiguousarray(x.numpy()))
    assert not np.shares_memory(x.numpy(), y.numpy())


@pytest.mark.parametrize(
    ("tensors", "dim", "error", "text"),
    [
        ([], 0, ml.ShapeError, "[concatenate] number of tensors must be >= 1: 0"),
        (
            [sample((2, 3)), sample((2, 3)), sample((2, 4))],
            0,
            ml.ShapeError,
            "[concatenate] shapes must be equal outside of dim 0: [2, 3] != [2, 4] "
            "(tensors 0 and 2)",
        ),
        (
            [sample((2, 3)), sample((3,))],
            0,
            ml.ShapeError,
            "[concatenate] shapes must be equal outside of dim 0: [2, 3] != [3] (tensors 0 and 1)",
        ),
        (
            [sample((2,)), sample((2,), ml.bfloat16)],
            0,
            ml.DTypeError,
            "[concatenate] dtypes must be equal: float32 != bfloat16 (tensors 0 and 1)",
        ),
        (
            [sample((2,))],
            1,
            ml.IndexOutOfRangeError,
            "[concatenate] dim must be in [-1, 1): 1",
        ),
        (
            [sample(())],
            0,
            ml.IndexOutOfRangeError,
            "[concatenate] dim must be in [0, 0): 0",
        ),
    ],
)
def test_concatenate_refuses_what_does_not_fit(tensors, dim, error, text):
    with pytest.raises(error) as caught:
        ml.concatenate(tensors, dim)
    assert str(caught.value) == text


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("target", FLOAT_DTYPES, ids=str)
def test_floats_convert_with_one_rounding_to_nearest_even(shape, source, target):
    x = sample(shape, source)
    check_same(x.to(target), rounded(x.numpy(), target))


def test_every_bfloat16_and_float16_converts_to_float32_exactly():
    bits = np.arange(2**16, dtype=np.uint16)
    for numpy_type in (ml_dtypes.bfloat16, np.float16):
        array = bits.view(numpy_type)
        with np.errstate(invalid="ignore"):
            check_same(ml.Tensor.from_numpy(array).to(ml.float32), array.astype(np.float32))


@pytest.mark.parametrize("target", [ml.bfloat16, ml.float16], ids=str)
def test_ties_overflow_and_special_values_round_as_numpy_does(target):
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 200_000, dtype=np.uint32)
    bits[::3] = (bits[::3] & 0xFFFF0000) | 0x8000  # halfway between two bfloat16
    bits[1::3] = (bits[1::3] & 0xFFFFE000) | 0x1000  # halfway between two float16
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(target.numpy_dtype)
    check_same(ml.Tensor.from_numpy(values).to(target), expected)


def test_conversion_of_a_view_is_contiguous_and_keeps_the_name():
    x = strided((3, 5), ml.bfloat16).with_name("w")
    y = x.to(ml.float32)
    assert y.is_contiguous
    assert y.name == "w"
    check_same(y, x.numpy().astype(np.float32))


@pytest.mark.parametrize("source", [ml.int32, ml.uint16, ml.uint8], ids=str)
@pytest.mark.parametrize("target", [*FLOAT_DTYPES, ml.complex64], ids=str)
def test_integers_become_floats(source, target):
    x = strided((3, 5), source)
    check_same(x.to(target), x.numpy().astype(np.float32).astype(target.numpy_dtype))


@pytest.mark.parametrize("source", FLOAT_DTYPES, ids=str)
def test_real_floats_become_complex(source):
    x = strided((3, 5), source)
    check_same(x.to(ml.complex64), x.numpy().astype(np.float32).astype(np.complex64))


@pytest.mark.parametrize("source", [*FLOAT_DTYPES, ml.int32, ml.uint16, ml.uint8], ids=str)
@pytest.mark.parametrize("target", [ml.int32, ml.uint16, ml.uint8], ids=str)
def test_numbers_become_integers_by_dropping_the_fraction(source, target):
    values = np.array([0, 1, 2, 100, 255]) + (0.75 if source.is_float else 0)
    x = ml.Tensor.from_numpy(values.astype(source.numpy_dtype))
    expected = np.trunc(x.numpy().astype(np.float64))
    if expected.max() > 255 and target is ml.uint8:
        x, expected = x[:4], expected[:4]  # 255.75 rounds to 256 in bfloat16
    check_same(x.to(target), expected.astype(target.numpy_dtype))


def test_negative_fractions_become_zero():
    x = ml.full((2,), -0.9)
    check_same(x.to(ml.uint8), np.zeros(2, np.uint8))


@pytest.mark.parametrize(
    ("x", "target", "text"),
    [
        (ml.full((1,), 256.0), ml.uint8, "[to] values must be in [0, 255] for uint8: 256.0"),
        (
            ml.full((1,), -1, ml.int32),
            ml.uint16,
            "[to] values must be in [0, 65535] for uint16: -1.0",
        ),
        (
            ml.full((1,), float("nan")),
            ml.int32,
            "[to] values must be in [-2147483648, 2147483647] for int32: nan",
        ),
        (
            ml.full((1,), 2.0**31),
            ml.int32,
            "[to] values must be in [-2147483648, 2147483647] for int32: 2147483648.0",
        ),
    ],
)
def test_values_that_an_integer_cannot_hold_are_refused(x, target, text):
    with pytest.raises(ml.TensorError) as caught:
        x.to(target)
    assert str(caught.value) == text


@pytest.mark.parametrize("target", [d for d in ml.DTYPES if d is not ml.complex64], ids=str)
def test_a_complex_tensor_never_loses_its_imaginary_part_in_silence(target):
    with pytest.raises(ml.DTypeError) as caught:
        sample((2,), ml.complex64).to(target)
    assert str(caught.value) == (f"[to] a complex dtype must stay complex: complex64 to {target}")
