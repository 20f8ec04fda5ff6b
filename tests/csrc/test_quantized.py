"""Block-quantized weights: right within the bound, and the bits that are promised.

A product is one of the dtype of x, or of integers.
"""

from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml import QuantizedTensor, Tensor

from . import calls
from .int8_operands import by_integers, integer_products
from .operands import (
    Array,
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
)  # fmt: skip
from .quantized_operands import FORMATS, NF4_CODE, elements, quantized, with_scales

# T, in, out: rows of whole K blocks, of whole blocks, of half blocks (so that every second row
# begins within one), of odd lengths; one token, each panel width, more than a group
SHAPES = [
    (1, 1024, 9), (1, 64, 70), (1, 32, 5), (1, 33, 3), (2, 576, 7), (3, 100, 5), (5, 96, 66),
    (7, 1100, 5), (13, 512, 130), (60, 576, 9), (125, 96, 6),
]  # fmt: skip
# The same for one token, with rows that end within a block of nested scales, or have several
NESTED_SHAPES = [(1, 1088, 70), (1, 20_480, 6), (1, 16_384 + 64, 5)]
formats = pytest.mark.parametrize(
    ("dtype", "double"), FORMATS, ids=lambda value: str(value).replace("False", "single")
)
activations = pytest.mark.parametrize("x_dtype", [bf16, f32], ids=str)


def expected_products(x: Array, weight: QuantizedTensor, dtype: Any = f32) -> Array:
    """Compute sums of integers, or the product with the dequantized weight."""
    with np.errstate(all="ignore"):
        if by_integers(x, weight):
            return integer_products(x, weight).astype(dtype)
        return run_linear(x, tensor(elements(weight, x.dtype)), dtype)


# ---- products -----------------------------------------------------------------------------------


@formats
@activations
@pytest.mark.parametrize("shape", SHAPES + NESTED_SHAPES, ids=str)
def test_products_are_right_and_have_the_bits_that_are_promised(
    isa: str, dtype: Any, double: bool, x_dtype: Any, shape: tuple[int, int, int]
) -> None:
    x, weight = normal(shape[:2], x_dtype), quantized(shape[:0:-1], dtype, double, seed=1)
    out = run_linear(x, weight)
    assert bits(out) == bits(expected_products(x, weight))
    if not by_integers(x, weight):
        check_products(out, x, elements(weight, x_dtype))
    if x_dtype == bf16:
        assert bits(run_linear(x, weight, bf16)) == bits(expected_products(x, weight, bf16))


@formats
@activations
@pytest.mark.parametrize("shape", SHAPES[::2], ids=str)
def test_products_have_the_same_bits_on_every_instruction_set_and_thread_count(
    dtype: Any, double: bool, x_dtype: Any, shape: tuple[int, int, int]
) -> None:
    x, weight = normal(shape[:2], x_dtype), quantized(shape[:0:-1], dtype, double, seed=1)
    check_same_bits(lambda: bits(run_linear(x, weight)), threads=(1, 2, 7))


@formats
@pytest.mark.parametrize("columns", [96, 1088])
def test_products_have_the_same_bits_for_any_cut_of_the_rows(
    isa: str, dtype: Any, double: bool, columns: int
) -> None:
    x, weight = normal((17, columns), bf16), quantized((11, columns), dtype, double, seed=1)
    whole = bits(run_linear(x, weight))
    for rows in (1, 2, 3, 6, 7, 16):
        parts = [run_linear(x[i : i + rows], weight) for i in range(0, 17, rows)]
        assert bits(np.concatenate(parts)) == whole


@formats
@pytest.mark.parametrize("tokens", [1, 4, 13])
def test_several_quantized_weights_give_the_bits_of_each_alone(
    isa: str, dtype: Any, double: bool, tokens: int
) -> None:
    x = normal((tokens, 128), bf16)
    weights = [quantized((n, 128), dtype, double, seed=n) for n in (70, 3, 0, 5)]
    outs = [empty((tokens, weight.shape[0]), bf16) for weight in weights]
    calls.linear(x, weights, outs)
    assert [bits(out) for out in outs] == [bits(run_linear(x, w, bf16)) for w in weights]


EXTREMES: list[list[float]] = [
    [0.0], [2.0**-100, 2.0**100, 0.0], [0.3, 1.7, 2.0], [2.0**-101], [2.0**101, 1.0],
    [1.0, 1e-40], [3e38, 1.0], [-0.5, 1.0], [np.inf], [1.0, 1.0, np.nan],
]  # fmt: skip


@formats
@pytest.mark.parametrize("scales", EXTREMES, ids=str)
def test_scales_of_any_size_give_the_bits_that_are_promised(
    isa: str, dtype: Any, double: bool, scales: list[float]
) -> None:
    weight = with_scales(quantized((6, 640), dtype, double), np.array(scales))
    for tokens in (1, 3):
        x = normal((tokens, 640), bf16)
        assert bits(run_linear(x, weight)) == bits(expected_products(x, weight))


# ---- dequantizing -------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("out_dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("shape", [(5, 96), (7, 33), (3, 1088), (1, 1), (20_001,), (2, 3, 50)])
def test_dequantizing_gives_code_times_scale_rounded_once(
    isa: str, dtype: Any, double: bool, out_dtype: Any, shape: tuple[int, ...]
) -> None:
    weight = quantized(shape, dtype, double)
    out = empty(shape, out_dtype)
    calls.get_rows(weight, None, out)
    assert bits(out) == bits(elements(weight, out_dtype))


@formats
@pytest.mark.parametrize("columns", [64, 50, 33])
def test_rows_are_dequantized_in_any_order(
    isa: str, dtype: Any, double: bool, columns: int
) -> None:
    weight = quantized((9, columns), dtype, double)
    rows = np.array([8, 0, 3, 3], np.int32)
    out = empty((4, columns), bf16)
    calls.get_rows(weight, rows, out)
    assert bits(out) == bits(elements(weight, bf16)[rows])


# ---- quantizing ---------------------------------------------------------------------------------


def blocks_of(x: Array, size: int) -> tuple[Array, Array]:
    """Cut x into rows of a block, padded by zeros; return them and their absmax."""
    padded = np.zeros(-(-x.size // size) * size, np.float32)
    padded[: x.size] = x.reshape(-1).astype(np.float32)
    rows = padded.reshape(-1, size)
    return rows, np.abs(rows).max(axis=1)


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("n", [1, 63, 64, 65, 640, 20_001])
def test_nf4_takes_the_entry_whose_neighbours_middles_enclose_the_element(
    isa: str, dtype: Any, n: int
) -> None:
    x = normal((n,), dtype)
    rows, absmax = blocks_of(x, 64)
    scaled = rows * (1 / absmax)[:, None]
    if n % 64:
        scaled[-1] = rows[-1] / absmax[-1]
    middles = (NF4_CODE[:-1] + NF4_CODE[1:]) / np.float32(2)
    codes = np.searchsorted(middles, scaled, side="left").reshape(-1)[: n + n % 2]
    weight = ml.quantize(tensor(x), ml.nf4)
    np.testing.assert_array_equal(weight.scales.numpy(), absmax)
    np.testing.assert_array_equal(weight.codes.numpy(), codes[0::2] << 4 | codes[1::2])


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 320, 20_001])
def test_int8_takes_a_127th_of_the_largest_as_scale_and_its_nearest_multiple(
    isa: str, dtype: Any, n: int
) -> None:
    x = normal((n,), dtype)
    rows, absmax = blocks_of(x, 32)
    scales = (absmax.astype(np.float32) / np.float32(127)).astype(bf16).astype(np.float32)
    codes = np.rint(rows * (np.float32(1) / scales)[:, None]).reshape(-1)[:n]
    weight = ml.quantize(tensor(x), ml.int8_block)
    np.testing.assert_array_equal(weight.scales.numpy().astype(np.float32), scales)
    np.testing.assert_array_equal(weight.codes.numpy(), codes)
    half = np.repeat(scales, 32)[:n] * (0.5 + 2**-15)
    assert (np.abs(elements(weight) - x.astype(np.float64)) <= half).all()


@pytest.mark.parametrize(
    ("largest", "scale", "code"),
    [
        (127.0, 1, 127), (127.24, 1, 127), (127.75, 1.0078125, 127), (63.5, 0.5, 127),
        (127 * 1.5 * 2.0**120, 1.5 * 2.0**120, 127), (127 * 2.0**-126, 2.0**-126, 127),
        (126 * 2.0**-126, 0, 0), (0.0, 0, 0),
    ],
)  # fmt: skip
def test_the_largest_code_of_int8_is_127(isa: str, largest: float, scale: float, code: int) -> None:
    for sign in (1, -1):
        x = np.zeros(32, np.float32)
        x[5] = sign * largest
        weight = ml.quantize(tensor(x), ml.int8_block)
        assert float(weight.scales.numpy()[0]) == scale
        assert weight.codes.numpy()[5] == sign * code


def test_int8_is_exact_in_float32() -> None:
    weight = ml.quantize(tensor(normal((64, 96), f32)), ml.int8_block)
    scales = np.repeat(weight.scales.numpy().astype(np.float64), 32).reshape(64, 96)
    exact = weight.codes.numpy().reshape(64, 96) * scales
    np.testing.assert_array_equal(weight.dequantize().numpy().astype(np.float64), exact)


@pytest.mark.parametrize("dtype", ml.BLOCK_DTYPES, ids=str)
def test_blocks_of_zeros_and_of_the_smallest_numbers_stay_near_zero(isa: str, dtype: Any) -> None:
    x = np.zeros(256, np.float32)
    x[64:128], x[128:192] = 1e-40, -1e-38
    weight = ml.quantize(tensor(x), dtype)
    assert np.abs(elements(weight) - x).max() <= 1.2e-38
    assert not elements(weight)[:64].any()


@pytest.mark.parametrize("dtype", ml.BLOCK_DTYPES, ids=str)
def test_quantizing_has_the_same_bits_for_any_number_of_threads(dtype: Any) -> None:
    x = tensor(normal((100_001,), bf16))

    def run() -> bytes:
        weight = ml.quantize(x, dtype)
        return weight.codes.numpy().tobytes() + weight.scales.numpy().tobytes()

    check_same_bits(run, threads=(1, 2, 7))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ml.BLOCK_DTYPES, ids=str)
def test_elements_that_are_not_finite_are_counted(isa: str, dtype: Any, value: float) -> None:
    x = normal((40_000,), f32)
    codes = Tensor.empty((40_000 // dtype.codes_per_item,), dtype.codes)
    scales = Tensor.empty((40_000 // dtype.block_size,), dtype.scales)
    assert calls.quantize(x, dtype, codes, scales) == 0
    x[[0, 20_000, 39_999]] = value
    assert calls.quantize(x, dtype, codes, scales) == 3


@formats
@activations
@pytest.mark.parametrize("tokens", [0, 1, 4, 16, 130])
def test_a_product_over_no_blocks_is_zero(
    isa: str, dtype: Any, double: bool, x_dtype: Any, tokens: int
) -> None:
    assert not run_linear(empty((tokens, 0), x_dtype), quantized((16, 0), dtype, double)).any()
