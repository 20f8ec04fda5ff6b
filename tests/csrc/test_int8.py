"""int8 and nf4 weights by integers: bit for bit what exact sums of blocks and one order give."""

import numpy as np
import pytest

from src import ml
from src.ml import QuantizedTensor

from .int8_operands import BLOCK, fused_multiply_add, integer_products, integers_of
from .operands import bf16, bits, check_same_bits, f32, normal, run_linear, tensor
from .quantized_operands import elements, quantized, scales_of, with_scales

# T, in, out: one token, two, each panel width, more than a panel; rows of one block, of an odd
# number, of half a vector, of whole stretches, of one block more; vectors of rows that are not full
SHAPES = [
    (1, 32, 5), (1, 480, 1), (1, 768, 7), (1, 4128, 67), (2, 32, 3), (3, 96, 17), (4, 544, 33),
    (5, 512, 15), (6, 1024, 64), (11, 1120, 70), (40, 4128, 9), (125, 64, 31),
]  # fmt: skip


def weight_of(rows: int, columns: int) -> QuantizedTensor:
    """Quantize normal numbers; the scales are any bfloat16, some of them negative."""
    weight = quantized((rows, columns), ml.int8_block, False, seed=1)
    return with_scales(weight, normal((weight.scales.size,), f32, seed=2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_have_the_bits_of_integer_sums_in_sixteen_lanes(
    isa: str, shape: tuple[int, int, int]
) -> None:
    x, weight = normal(shape[:2], bf16), weight_of(*shape[:0:-1])
    expected = integer_products(x, weight)
    assert bits(run_linear(x, weight)) == bits(expected)
    assert bits(run_linear(x, weight, bf16)) == bits(expected.astype(bf16))


def test_any_number_of_tokens_gives_the_same_bits(isa: str) -> None:
    x, weight = normal((40, 544), bf16), weight_of(19, 544)
    expected = integer_products(x, weight)
    for tokens in range(1, 41):
        assert bits(run_linear(x[:tokens], weight)) == bits(expected[:tokens])


@pytest.mark.parametrize("shape", [(1, 4128, 301), (9, 1056, 203)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, int, int]) -> None:
    x, weight = normal(shape[:2], bf16), weight_of(*shape[:0:-1])
    check_same_bits(lambda: bits(run_linear(x, weight)))
    assert bits(run_linear(x, weight)) == bits(integer_products(x, weight))


@pytest.mark.parametrize("tokens", [1, 7])
def test_products_are_near_those_of_the_dequantized_weight(isa: str, tokens: int) -> None:
    """An element of x is off by at most 2^-15 of the largest one of its block."""
    x, weight = normal((tokens, 2080), bf16), weight_of(21, 2080)
    x *= np.exp2(normal(x.shape, f32, seed=3) * 6).astype(bf16)  # wide ranges within blocks
    wide_x, wide_weight = x.astype(np.float64), elements(weight).astype(np.float64)
    largest = np.abs(wide_x).reshape(tokens, -1, BLOCK).max(axis=-1)
    per_block = np.abs(wide_weight).reshape(21, -1, BLOCK).sum(axis=-1)
    magnitude = np.abs(wide_x) @ np.abs(wide_weight).T
    steps = 2080 / BLOCK / 16 + 8
    bound = 2.0**-15 * largest @ per_block.T + steps * 2.0**-24 * magnitude
    error = np.abs(run_linear(x, weight) - wide_x @ wide_weight.T)
    assert (error <= bound * 1.01).all()
    assert (error > bound / 1000).any()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("tokens", [1, 7])
def test_products_with_nf4_are_near_those_of_the_dequantized_weight(
    isa: str, tokens: int, double: bool
) -> None:
    """Besides, an nf4 code is off by at most 2^-12 of the scale of its block."""
    x, weight = normal((tokens, 2112), bf16), quantized((21, 2112), ml.nf4, double)
    wide_x, wide_weight = x.astype(np.float64), elements(weight).astype(np.float64)
    scales = np.repeat(np.abs(scales_of(weight).astype(np.float64)), 64).reshape(21, 2112)
    largest = np.abs(wide_x).reshape(tokens, -1, BLOCK).max(axis=-1)
    per_block = np.abs(wide_weight).reshape(21, -1, BLOCK).sum(axis=-1)
    magnitude = np.abs(wide_x) @ np.abs(wide_weight).T
    steps = 2112 / BLOCK / 16 + 8
    bound = 2.0**-15 * largest @ per_block.T + steps * 2.0**-24 * magnitude
    bound += 2.0**-12 * np.abs(wide_x) @ scales.T
    error = np.abs(run_linear(x, weight) - wide_x @ wide_weight.T)
    assert (error <= bound * 1.01).all()
    assert (error > bound / 1000).any()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("tokens", [1, 7])
def test_the_largest_sum_of_32_products_fits_into_32_bits(isa: str, tokens: int, sign: int) -> None:
    """255 * 2^7 steps of x times 2^11 of a level, 32 times, are 255 * 2^23."""
    x, weight = np.full((tokens, 1024), 1.9921875, bf16), np.full((19, 1024), sign, np.float32)
    out = run_linear(x, ml.quantize(tensor(weight), ml.nf4))
    np.testing.assert_array_equal(out, np.full((tokens, 19), 1024 * 1.9921875 * sign))


@pytest.mark.parametrize("tokens", [1, 7])
def test_elements_that_are_not_far_below_the_largest_are_exact(isa: str, tokens: int) -> None:
    x = np.random.default_rng(0).uniform(1, 120, (tokens, 64)).astype(bf16)
    numbers, scales = integers_of(x)
    np.testing.assert_array_equal(
        numbers * scales[..., None], x.reshape(numbers.shape).astype(np.float64)
    )
    weight = quantized((5, 64), ml.int8_block, False)
    exact = x.astype(np.float64) @ elements(weight).astype(np.float64).T
    np.testing.assert_allclose(run_linear(x, weight), exact, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 31, 33, 543])
def test_a_token_with_an_element_that_is_not_finite_gives_nan_and_the_others_do_not(
    isa: str, at: int, value: float
) -> None:
    x, weight = normal((7, 544), bf16), weight_of(5, 544)
    expected = integer_products(x, weight)
    x[3, at] = value
    out = run_linear(x, weight)
    assert np.isnan(out[3]).all()
    assert np.isnan(run_linear(x[3:4], weight)).all()
    assert bits(np.delete(out, 3, axis=0)) == bits(np.delete(expected, 3, axis=0))


EXTREMES = [0.0, -0.0, 1e-40, 2.0**-133, 2.0**-126, 2.0**-112, 1e-30, 1.0, 1e30, 3.38e38, 2.0**127]


@pytest.mark.parametrize("value", EXTREMES)
def test_numbers_of_any_size_give_what_the_formula_gives(isa: str, value: float) -> None:
    x, weight = normal((7, 96), bf16), quantized((5, 96), ml.int8_block, False)
    x[:, 32:64] = np.sign(normal((7, 32), f32)) * value
    x[:, 40] = 0
    for tokens in (1, 7):
        assert bits(run_linear(x[:tokens], weight)) == bits(integer_products(x[:tokens], weight))


@pytest.mark.parametrize("code", [127, -127, -128])
def test_the_largest_codes_times_the_largest_numbers_do_not_overflow(isa: str, code: int) -> None:
    codes = np.full((17, 1056), code, np.int8)
    scales = np.full(17 * 33, 0.5, bf16)
    weight = QuantizedTensor(ml.int8_block, codes.shape, tensor(codes), tensor(scales))
    x = np.full((7, 1056), 255 * 2.0**20, bf16)
    for sign in (1, -1):
        for tokens in (1, 7):
            out = run_linear((sign * x[:tokens]).astype(bf16), weight)
            assert (out == sign * code * 255 * 2.0**19 * 1056).all()


def test_the_emulation_of_fma_rounds_once() -> None:
    a, b = np.float32([1 + 2**-12, 1 + 2**-23, 3]), np.float32([1 + 2**-12, 1 + 2**-23, 0.25])
    c = np.float32([-(1 + 2**-11), 2**-70, 2**24])
    expected = np.float32([2**-24, 1 + 2**-22, 2**24])
    np.testing.assert_array_equal(fused_multiply_add(a, b, c), expected)
    # A tie in float32 that only the last bit of the exact sum breaks.
    tie = fused_multiply_add(np.float32([2**-24]), np.float32([1]), np.float32([1]))
    above = fused_multiply_add(np.float32([2**-24]), np.float32([1 + 2**-20]), np.float32([1]))
    assert (tie[0], above[0]) == (1, np.nextafter(np.float32(1), np.float32(2)))
