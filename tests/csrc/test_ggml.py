"""Weights in the blocks of GGUF files: right within the bound, and the bits that are promised."""

from typing import Any

import numpy as np
import pytest

from src import ml

from . import calls
from .ggml_operands import (
    FORMATS,
    Array,
    blocks_of,
    elements,
    integer_products,
    parts_of,
    random_weight,
)
from .operands import (
    bf16,
    bits,
    check_products,
    check_same_bits,
    empty,
    f16,
    f32,
    normal,
    run_linear,
    tensor,
)

# T, blocks or superblocks of 256 along `in`, out: rows of less than a vector, of whole ones, of one
# more; each panel width; vectors of rows that are not full; more than a K block and a chunk
SHAPES = [
    (1, 1, 5), (1, 2, 1), (1, 5, 67), (2, 3, 33), (3, 2, 17), (4, 1, 9), (5, 3, 15), (6, 2, 64),
    (11, 5, 70), (40, 3, 9), (125, 1, 31),
]  # fmt: skip
formats = pytest.mark.parametrize("dtype", FORMATS, ids=str)
VALUES = [0.0, -0.0, 2.0**-24, -(2.0**-24), 1e-6, 2.0**-14, 0.01, -0.3, 1.0, 60000.0, -65504.0]


def columns_of(dtype: ml.BlockDType, count: int) -> int:
    """Return so many blocks of 256 elements, and one of 32 less where a format has those."""
    return 256 * count - (32 if dtype.block_size == 32 else 0)


@formats
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_have_the_bits_of_integer_sums_in_sixteen_lanes(
    isa: str, dtype: ml.BlockDType, shape: tuple[int, int, int]
) -> None:
    T, blocks, rows = shape
    columns = columns_of(dtype, blocks)
    x, weight = normal((T, columns), bf16), random_weight(dtype, (rows, columns))
    expected = integer_products(x, weight)
    assert bits(run_linear(x, weight)) == bits(expected)
    assert bits(run_linear(x, weight, bf16)) == bits(expected.astype(bf16))


@formats
def test_any_number_of_rows_gives_the_same_bits(isa: str, dtype: ml.BlockDType) -> None:
    columns = columns_of(dtype, 3)
    x, weight = normal((64, columns), bf16), random_weight(dtype, (19, columns))
    whole = run_linear(x, weight)
    for rows in (1, 2, 3, 7, 8):
        parts = [run_linear(x[i : i + rows], weight) for i in range(0, 64, rows)]
        assert bits(np.concatenate(parts)) == bits(whole)


@formats
@pytest.mark.parametrize("x_dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("shape", [(1, 5, 301), (3, 3, 70), (9, 4, 203)], ids=str)
def test_any_set_and_number_of_threads_give_the_same_bits(
    dtype: ml.BlockDType, x_dtype: Any, shape: tuple[int, int, int]
) -> None:
    T, blocks, rows = shape
    columns = columns_of(dtype, blocks)
    x, weight = normal((T, columns), x_dtype), random_weight(dtype, (rows, columns))
    check_same_bits(lambda: bits(run_linear(x, weight)), threads=(1, 2, 3, 7))


@formats
@pytest.mark.parametrize("tokens", [1, 7])
def test_products_with_float32_are_those_of_the_dequantized_weight(
    isa: str, dtype: ml.BlockDType, tokens: int
) -> None:
    columns = columns_of(dtype, 3)
    x, weight = normal((tokens, columns), f32), random_weight(dtype, (21, columns))
    out = run_linear(x, weight)
    assert bits(out) == bits(run_linear(x, tensor(elements(weight))))
    check_products(out, x, elements(weight))


@formats
@pytest.mark.parametrize("tokens", [1, 7])
def test_products_are_near_those_of_the_dequantized_weight(
    isa: str, dtype: ml.BlockDType, tokens: int
) -> None:
    """x is off by at most 2^-15 of the largest of its group; each step of a lane rounds once."""
    columns = columns_of(dtype, 8)
    x, weight = normal((tokens, columns), bf16), random_weight(dtype, (21, columns))
    x *= np.exp2(normal(x.shape, f32, seed=3) * 6).astype(bf16)  # wide ranges within groups
    parts = parts_of(weight)
    scaled = parts.codes * parts.scales.astype(np.float64)[:, None]
    mins = 0.0 if parts.mins is None else parts.mins.astype(np.float64)[:, None]
    wide_x, wide_weight = x.astype(np.float64), (scaled + mins).reshape(21, columns)
    largest = np.abs(wide_x).reshape(tokens, -1, 32).max(axis=-1)
    per_group = np.abs(wide_weight).reshape(21, -1, 32).sum(axis=-1)
    apart = (np.abs(scaled) + np.abs(mins)).reshape(21, columns)
    steps = (columns / 32 / 16 * 4 + 8) * 2.0**-24
    bound = 2.0**-15 * largest @ per_group.T + steps * np.abs(wide_x) @ apart.T
    error = np.abs(run_linear(x, weight) - wide_x @ wide_weight.T)
    assert (error <= bound * 1.01).all()
    assert (error > bound / 10_000).any()


@formats
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_token_that_is_not_finite_gives_nan_and_the_others_do_not(
    isa: str, dtype: ml.BlockDType, value: float
) -> None:
    x, weight = normal((7, 512), bf16), random_weight(dtype, (5, 512))
    expected = integer_products(x, weight)
    x[3, 300] = value
    out = run_linear(x, weight)
    assert np.isnan(out[3]).all()
    assert np.isnan(run_linear(x[3:4], weight)).all()
    assert bits(np.delete(out, 3, axis=0)) == bits(np.delete(expected, 3, axis=0))


@formats
@pytest.mark.parametrize("values", [VALUES, [np.inf, 1.0], [1.0, np.nan, 0.0]], ids=str)
def test_scales_and_numbers_of_any_size_give_the_bits_that_are_promised(
    isa: str, dtype: ml.BlockDType, values: list[float]
) -> None:
    data = blocks_of(dtype, 23 * 512, np.array(values))
    weight = ml.QuantizedTensor(dtype, (23, 512), tensor(data))
    x = normal((7, 512), bf16)
    x[:, 32:64], x[:, 256:300], x[:, 480:] = 0, 1e-40, 3e38
    for tokens in (1, 3, 7):
        assert bits(run_linear(x[:tokens], weight)) == bits(integer_products(x[:tokens], weight))


@formats
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_the_largest_codes_times_the_largest_numbers_do_not_overflow(
    isa: str, dtype: ml.BlockDType, byte: int
) -> None:
    data = np.full_like(blocks_of(dtype, 17 * 512, np.ones(1)), byte)
    places = np.arange(dtype.block_bytes)
    fixed = blocks_of(dtype, 17 * 512, np.ones(1))
    halves = [place for place in places if (fixed[:, place] == fixed[0, place]).all()]
    data[:, halves] = fixed[:, halves]
    weight = ml.QuantizedTensor(dtype, (17, 512), tensor(data))
    x = np.full((7, 512), 255 * 2.0**20, bf16)
    for tokens in (1, 7):
        out = run_linear(x[:tokens], weight)
        assert bits(out) == bits(integer_products(x[:tokens], weight))
        exact = x[:tokens].astype(np.float64) @ elements(weight).astype(np.float64).T
        np.testing.assert_allclose(out, exact, rtol=1e-5, atol=np.abs(exact).max() * 1e-5)


# ---- dequantizing -------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("out_dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("values", [VALUES, [np.inf, 1.0, np.nan]], ids=str)
def test_dequantizing_gives_code_times_scale_plus_minimum(
    isa: str, dtype: ml.BlockDType, out_dtype: Any, values: list[float]
) -> None:
    data = blocks_of(dtype, 90 * 256, np.array(values))
    weight = ml.QuantizedTensor(dtype, (90, 256), tensor(data))
    out = empty((90, 256), out_dtype)
    calls.get_rows(weight, None, out)
    with np.errstate(all="ignore"):
        assert bits(out) == bits(elements(weight).astype(out_dtype))


@formats
@pytest.mark.parametrize("columns", [256, 1280, 20_480])
def test_rows_are_dequantized_in_any_order(isa: str, dtype: ml.BlockDType, columns: int) -> None:
    weight = random_weight(dtype, (9, columns))
    rows = np.array([8, 0, 3, 3], np.int32)
    out = empty((4, columns), bf16)
    calls.get_rows(weight, rows, out)
    assert bits(out) == bits(elements(weight)[rows].astype(bf16))


@formats
def test_every_code_occurs_in_these_tests(dtype: ml.BlockDType) -> None:
    codes: Array = parts_of(random_weight(dtype, (64, 1024))).codes
    known = {"q8_0": 256, "q4": 16, "q5": 32, "q2": 4, "q3": 8, "q6": 64, "iq": 16, "mx": 15}
    name = dtype.name
    assert np.unique(codes).size == known.get(name, known.get(name[:2]))
