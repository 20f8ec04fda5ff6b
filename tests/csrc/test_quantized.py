"""Block-quantized weights: right within the bound, and the bits that are promised.

A product is one of the dtype of x, or of integers.
"""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml import QuantizedTensor, Tensor

from . import calls
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
)
from .quantized_operands import (
    GGML_FORMATS,
    NF4_CODE,
    Format,
    by_integers,
    elements,
    every_format,
    every_product,
    integer_products,
    is_ggml,
    operands,
    quantized,
    whole_blocks,
    with_scales,
)

# T, in, out: rows of one block, of an odd number, of whole K blocks and of one block
# more, of half blocks and of odd lengths; one token, each panel width, more than a group;
# vectors of rows that are not full. Rows of the formats of GGUF files are whole blocks.
SHAPES = [
    (1, 32, 5),
    (1, 33, 3),
    (1, 480, 1),
    (1, 1024, 9),
    (1, 1088, 70),
    (1, 4128, 67),
    (2, 576, 33),
    (3, 100, 5),
    (3, 96, 17),
    (4, 544, 33),
    (5, 512, 15),
    (6, 1024, 64),
    (7, 1100, 5),
    (11, 1120, 70),
    (13, 512, 130),
    (40, 4128, 9),
    (60, 576, 9),
    (125, 96, 31),
]
# The same for one token, with rows that end within a block of nested scales, or have
# several
NESTED_SHAPES = [(1, 20_480, 6), (1, 16_384 + 64, 5)]


activations = pytest.mark.parametrize("x_dtype", [bf16, f32], ids=str)


def expected_products(x: Array, weight: QuantizedTensor) -> Array:
    """Compute sums of integers, or the product with the dequantized weight."""
    with np.errstate(all="ignore"):
        if by_integers(x, weight):
            return integer_products(x, weight)
        return run_linear(x, tensor(elements(weight, x.dtype)))


@cache  # for every instruction set
def promised(
    shape: tuple[int, int, int], kind: Format, x_dtype: Any
) -> tuple[Array, Any, Array]:
    """Draw operands; return them and their product, which is held against float64."""
    x, weight = operands(shape, x_dtype, kind)
    expected = expected_products(x, weight)
    if not by_integers(x, weight):
        check_products(expected, x, elements(weight, x_dtype))
    return x, weight, expected


# ---- products --------------------------------------------------------------------------


@every_product
@activations
def test_products_are_right_and_have_the_promised_bits(
    isa: str, kind: Format, x_dtype: Any
) -> None:
    for shape in SHAPES + (NESTED_SHAPES if kind[1] else []):
        x, weight, expected = promised(shape, kind, x_dtype)
        assert bits(run_linear(x, weight)) == bits(expected), shape
        if x_dtype == bf16:
            assert bits(run_linear(x, weight, bf16)) == bits(expected.astype(bf16)), shape


@every_product
def test_rows_of_any_number_of_blocks_have_the_promised_bits(
    isa: str, kind: Format
) -> None:
    size = kind[0].block_size
    for columns in range(size, 1025 + size, max(size, 32)):
        x, weight, expected = promised((1 + columns // size % 4, columns, 3), kind, bf16)
        assert bits(run_linear(x, weight)) == bits(expected), columns


@every_product
def test_a_last_group_of_one_row_has_the_bits_of_that_row_alone(
    isa: str, kind: Format
) -> None:
    x, weight = operands((2773, 256, 3), bf16, kind)  # 21 groups of 132 rows, and one row
    whole = run_linear(x, weight)
    for rows in (slice(2640, 2772), slice(2772, 2773)):
        assert bits(whole[rows]) == bits(run_linear(x[rows], weight))


SCALES: list[list[float]] = [
    [0.0], [2.0**-100, 2.0**100, 0.0], [0.3, 1.7, 2.0], [2.0**-101], [2.0**101, 1.0],
    [1.0, 1e-40], [3e38, 1.0], [-0.5, 1.0], [np.inf], [1.0, 1.0, np.nan],
]  # fmt: skip
HALVES = [
    [
        0.0,
        -0.0,
        2.0**-24,
        -(2.0**-24),
        1e-6,
        2.0**-14,
        0.01,
        -0.3,
        1.0,
        60000.0,
        -65504.0,
    ],
    [np.inf, 1.0],
    [1.0, np.nan, 0.0],
]
NUMBERS = [
    0.0,
    -0.0,
    1e-40,
    2.0**-133,
    2.0**-126,
    2.0**-112,
    126 * 2.0**-126,
    127 * 2.0**-126,
    1e-30,
    1.0,
    1e30,
    3.38e38,
    2.0**127,
]


@every_product
def test_scales_and_numbers_of_any_size_give_the_promised_bits(
    isa: str, kind: Format
) -> None:
    x = normal((7, 1024), bf16)
    for group, value in enumerate(NUMBERS):  # each the largest of a group of 32
        numbers = x[3:, 64 * group : 64 * group + 32]
        numbers[...] = np.sign(numbers) * value
        numbers[:, 8] = 0
    for scales in HALVES if is_ggml(kind[0]) else SCALES:
        weight = with_scales(quantized((23, 1024), *kind), np.array(scales))
        expected = expected_products(x, weight)
        for tokens in (1, 3, 7):
            assert bits(run_linear(x[-tokens:], weight)) == bits(expected[-tokens:]), (
                scales
            )


# ---- dequantizing ----------------------------------------------------------------------


@every_format
def test_dequantizing_gives_code_times_scale_plus_minimum_of_any_rows(
    isa: str, kind: Format
) -> None:
    assert (ml.nf4_code().numpy() == NF4_CODE).all()
    shapes: list[tuple[int, ...]] = [
        (5, 96),
        (7, 33),
        (3, 1088),
        (1, 1),
        (20_001,),
        (2, 3, 50),
    ]
    weights = [quantized((*s[:-1], whole_blocks(kind[0], s[-1])), *kind) for s in shapes]
    if kind in GGML_FORMATS:
        weights += [with_scales(quantized((90, 256), *kind), np.array(x)) for x in HALVES]
    for weight, out_dtype in product(weights, (f32, bf16, f16)):
        out = empty(weight.shape, out_dtype)
        calls.get_rows(weight, None, out)
        assert bits(out) == bits(elements(weight, out_dtype)), weight.shape
    for columns in (33, 50, 64, 1280, 20_480):
        weight = quantized((9, whole_blocks(kind[0], columns)), *kind)
        rows = np.array([8, 0, 3, 3], np.int32)
        out = empty((4, weight.shape[1]), bf16)
        calls.get_rows(weight, rows, out)
        assert bits(out) == bits(elements(weight, bf16)[rows])


# ---- quantizing ------------------------------------------------------------------------


def blocks_of(x: Array, size: int) -> tuple[Array, Array]:
    """Cut x into rows of a block, padded by zeros; return them and their absmax."""
    padded = np.zeros(-(-x.size // size) * size, np.float32)
    padded[: x.size] = x.astype(np.float32)
    rows = padded.reshape(-1, size)
    return rows, np.abs(rows).max(axis=1)


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
def test_nf4_takes_the_entry_whose_middles_enclose_the_element(
    isa: str, dtype: Any
) -> None:
    middles = (NF4_CODE[:-1] + NF4_CODE[1:]) / np.float32(2)
    for n in (1, 63, 64, 65, 640, 20_001):
        x = normal((n,), dtype)
        rows, absmax = blocks_of(x, 64)
        scaled = rows * (1 / absmax)[:, None]
        if n % 64:
            scaled[-1] = rows[-1] / absmax[-1]
        codes = np.searchsorted(middles, scaled, side="left").reshape(-1)[: n + n % 2]
        weight = ml.quantize(tensor(x), ml.nf4)
        np.testing.assert_array_equal(weight.scales.numpy(), absmax)
        np.testing.assert_array_equal(
            weight.codes.numpy(), codes[0::2] << 4 | codes[1::2]
        )


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
def test_int8_takes_a_127th_of_the_largest_and_the_nearest_multiple(
    isa: str, dtype: Any
) -> None:
    for n in (1, 31, 32, 33, 320, 20_001):
        x = normal((n,), dtype)
        rows, absmax = blocks_of(x, 32)
        scales = (absmax / np.float32(127)).astype(bf16).astype(np.float32)
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
def test_the_largest_code_of_int8_is_127(
    isa: str, largest: float, scale: float, code: int
) -> None:
    for sign in (1, -1):
        x = np.zeros(32, np.float32)
        x[5] = sign * largest
        weight = ml.quantize(tensor(x), ml.int8_block)
        assert float(weight.scales.numpy()[0]) == scale
        assert weight.codes.numpy()[5] == sign * code


@pytest.mark.parametrize("dtype", ml.BLOCK_DTYPES, ids=str)
def test_blocks_of_zeros_and_of_the_smallest_numbers_stay_near_zero(
    isa: str, dtype: Any
) -> None:
    x = np.zeros(256, np.float32)
    x[64:128] = 1e-40
    x[128:192] = -1e-38
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
def test_elements_that_are_not_finite_are_counted(
    isa: str, dtype: Any, value: float
) -> None:
    x = normal((40_000,), f32)
    codes = Tensor.empty((40_000 // dtype.codes_per_item,), dtype.codes)
    scales = Tensor.empty((40_000 // dtype.block_size,), dtype.scales)
    assert calls.quantize(x, dtype, codes, scales) == 0
    x[[0, 20_000, 39_999]] = value
    assert calls.quantize(x, dtype, codes, scales) == 3
