"""linear and batched_matmul: right within the bound, and the same bits however they are
cut.
"""

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from . import calls
from .operands import (
    PRODUCTS,
    UNIT_ROUNDOFF,
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
)
from .quantized_operands import EVERY_FORMAT, INT8_FORMATS, operands
from .quantized_operands import fused_multiply_add as fma

# T, in, out: sizes of zero; every tail of the columns; one token, each panel width, few
# tokens and one more, more than a group; row tails of the tile; more columns than one K
# block holds
COLUMNS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257)
SHAPES = [
    (0, 8, 4), (3, 8, 0), (0, 0, 0),
    *((tokens, columns, 9) for columns in COLUMNS for tokens in (1, 4, 7)),
    (1, 96, 70), (2, 96, 7), (3, 65, 5), (4, 64, 66), (5, 33, 3), (6, 32, 4), (7, 40, 9),
    (13, 48, 129), (24, 70, 9), (25, 70, 9), (48, 33, 70), (49, 33, 70), (125, 34, 6),
    (263, 34, 133), (7, 4100, 5), (14, 8225, 7),
]  # fmt: skip
# Of x, of the weight, which may be a format, and of the result.
Types = tuple[Any, Any, Any]
QUANTIZED = [
    *((x, kind, x) for x in (bf16, f32) for kind in EVERY_FORMAT),
    *((bf16, kind, bf16) for kind in INT8_FORMATS),
]


def name_of(types: Types) -> str:
    return re.sub(r"[^\w-]", "", "-".join(map(str, types)))


products = pytest.mark.parametrize("types", PRODUCTS, ids=name_of)
all_products = pytest.mark.parametrize("types", [*PRODUCTS, *QUANTIZED], ids=name_of)


@products
def test_linear_is_right_for_every_tail_with_the_same_bits_on_every_path(
    types: Types,
) -> None:
    for shape in SHAPES:
        x, weight = operands(shape, *types[:2])
        check_same_bits(
            lambda x=x, w=weight: bits(run_linear(x, w, types[2])), threads=(2,)
        )
        check_products(run_linear(x, weight, types[2]), x, weight)


@all_products
def test_linear_gives_the_same_bits_on_every_path_and_any_threads(types: Types) -> None:
    for shape in (
        (1, 1280, 301),
        (3, 768, 70),
        (9, 1056, 203),
        (7, 1100, 66),
        (14, 520, 203),
    ):
        x, weight = operands(shape, *types[:2])
        check_same_bits(lambda x=x, w=weight: bits(run_linear(x, w, types[2])))


@all_products
def test_linear_gives_the_same_bits_for_any_cut_of_rows(isa: str, types: Types) -> None:
    for columns in (70, 1088, 4100):
        x, weight = operands((64, columns, 11), *types[:2])
        whole = bits(run_linear(x, weight, types[2]))
        for rows in (1, 3, 7, 16):
            parts = [
                run_linear(x[i : i + rows], weight, types[2]) for i in range(0, 64, rows)
            ]
            assert bits(np.concatenate(parts)) == whole
        for rows in (2, 4, 5, 6, 8, 13, 24, 25, 31, 48, 49):
            assert whole.startswith(bits(run_linear(x[:rows], weight, types[2])))
        if isinstance(weight, np.ndarray):
            single = [run_linear(x, weight[i : i + 1], types[2]) for i in range(11)]
            assert bits(np.concatenate(single, axis=1)) == whole


def test_subnormal_numbers_count_alike_in_one_row_and_among_many(isa: str) -> None:
    for x_exponent, exponent in ((-64, -62), (-132, 20), (10, -135)):
        x = np.ldexp(normal((50, 70), f32), x_exponent).astype(bf16)
        weight = np.ldexp(normal((11, 70), f32, seed=1), exponent).astype(bf16)
        whole = run_linear(x, weight, f32)
        alone = np.concatenate([run_linear(x[i : i + 1], weight, f32) for i in range(50)])
        assert bits(whole) == bits(alone)


@products
def test_linear_lets_nan_and_infinity_through_to_their_own_row_only(
    isa: str, types: Types
) -> None:
    x, weight = operands((8, 50, 5), *types[:2])
    weight = (np.abs(weight) + 1).astype(types[1])
    for value in (np.nan, np.inf, -np.inf):
        x[3, 49] = value
        out = run_linear(x, weight, types[2]).astype(np.float32)
        np.testing.assert_array_equal(out[3], np.full(5, value, np.float32))
        assert np.isfinite(np.delete(out, 3, axis=0)).all()


def test_bfloat16_products_are_summed_in_the_order_that_is_documented(isa: str) -> None:
    x = normal((1, 70), bf16)
    w = normal((1, 70), bf16, seed=1)
    padded = np.zeros((2, 96), np.float32)
    padded[0, :70] = x[0]
    padded[1, :70] = w[0]
    lanes = np.zeros(16, np.float32)
    for a, b in zip(
        padded[0].reshape(-1, 16, 2), padded[1].reshape(-1, 16, 2), strict=True
    ):
        lanes = fma(a[:, 0], b[:, 0], fma(a[:, 1], b[:, 1], lanes))
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width:]
    assert run_linear(x, w, f32)[0, 0] == lanes[0]


def test_float32_products_are_fused_even_where_rounding_twice_would_show(
    isa: str,
) -> None:
    # 1 + 2^-23 + 2^-24 - 2^-68 lies below a tie; by way of float64 it would become the
    # tie.
    x = np.zeros((1, 32), np.float32)
    w = np.zeros((1, 32), np.float32)
    x[0, 0] = 1 + 2.0**-23
    w[0, 0] = 1
    x[0, 16] = 2.0**-12 * (1 + 2.0**-22)
    w[0, 16] = 2.0**-12 * (1 - 2.0**-22)
    assert run_linear(x, w, f32)[0, 0] == np.float32(1 + 2.0**-23)
    assert run_linear(-x, w, f32)[0, 0] == -np.float32(1 + 2.0**-23)


BATCHES = [
    (1, 1, 1, 1),
    (3, 1, 65, 40),
    (2, 7, 5, 33),
    (2, 130, 3, 16),
    (1, 6, 200, 4100),
    (2, 3, 4, 0),
    (1, 257, 270, 300),
    (1, 2, 3, 257),
    (5, 1, 1, 512),
]


def run_matmul(a: Array, b: Array, dtype: "np.dtype[Any]") -> Array:
    out = empty((*a.shape[:2], b.shape[1]), dtype)
    calls.batched_matmul(a, b, out)
    return out


def check_chains(out: Array, a: Array, b: Array) -> None:
    """Check a [m, k] times b [n, k] against float64.

    A block's chain of up to 256 steps rounds once in each, and each block is added once.
    """
    wide_a = a.astype(np.float64)
    wide_b = b.astype(np.float64)
    expected = wide_a @ wide_b.T
    magnitude = np.abs(wide_a) @ np.abs(wide_b).T
    steps = min(256, a.shape[-1]) + a.shape[-1] / 256 + 1
    bound = steps * 2.0**-24 * magnitude + UNIT_ROUNDOFF[out.dtype] * np.abs(expected)
    assert (np.abs(out.astype(np.float64) - expected) <= bound * 1.01).all()


@pytest.mark.parametrize("types", PRODUCTS[:3], ids=name_of)
def test_batched_matmul_is_right_with_the_same_bits_on_every_path(types: Types) -> None:
    for batch, m, n, k in BATCHES:
        a = normal((batch, m, k), types[0])
        b = normal((batch, n, k), types[1], seed=1)
        check_same_bits(lambda a=a, b=b: bits(run_matmul(a, b, types[2])), threads=(1, 3))
        out = run_matmul(a, b, types[2])
        for i in range(batch):
            check_chains(out[i], a[i], b[i])


@pytest.mark.parametrize("types", PRODUCTS[:3], ids=name_of)
def test_batched_matmul_gives_the_same_bits_for_any_cut_and_strides(
    isa: str, types: Types
) -> None:
    calls.set_num_threads(2)
    a = normal((2, 40, 301), types[0])
    b = normal((2, 35, 301), types[1], seed=1)
    whole = run_matmul(a, b, types[2])
    for row, column in ((0, 0), (17, 34), (39, 3)):
        part = run_matmul(a[:, row : row + 1], b[:, column : column + 1], types[2])
        assert bits(part) == bits(whole[:, row : row + 1, column : column + 1])
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (a, b)]
    assert bits(run_matmul(*turned, types[2])) == bits(whole)
    apart = [np.repeat(x, 3, axis=2)[:, :, ::3] for x in (a, b)]
    assert bits(run_matmul(*apart, types[2])) == bits(whole)


def test_batched_matmul_sums_in_the_order_that_is_documented(isa: str) -> None:
    for dtype, k in ((bf16, 701), (f32, 600)):
        a = normal((1, 1, k), dtype)
        b = normal((1, 1, k), dtype, seed=1)
        x = np.zeros(702, np.float32)
        y = np.zeros(702, np.float32)
        x[:k] = a[0, 0]
        y[:k] = b[0, 0]
        order = np.arange(702).reshape(-1, 2)[:, ::-1] if dtype is bf16 else np.arange(k)
        total = np.float32(0)
        for start in range(0, k, 256):
            chain = np.zeros(1, np.float32)
            for i in order[(order >= start) & (order < start + 256)].ravel():
                chain = fma(x[i : i + 1], y[i : i + 1], chain)
            total = total + chain[0]
        assert run_matmul(a, b, f32)[0, 0, 0] == total


def test_the_bound_of_the_products_refuses_a_wrong_lane() -> None:
    x = normal((2, 64), f32)
    weight = normal((3, 64), f32, seed=1)
    out = (x[:, 1:] @ weight[:, 1:].T).astype(np.float32)
    with pytest.raises(AssertionError):
        check_products(out, x, weight)


# ---- several weights, and scratch -----------------------------------------------


@all_products
def test_several_weights_give_the_bits_of_each_alone(isa: str, types: Types) -> None:
    for tokens, columns in (
        (1, 33),
        (1, 1100),
        (2, 33),
        (4, 128),
        (7, 1100),
        (13, 33),
        (125, 96),
    ):
        pairs = [operands((tokens, columns, n), *types[:2]) for n in (70, 3, 0, 5)]
        x = pairs[0][0]
        weights = [weight for _, weight in pairs]
        alone = [bits(run_linear(x, weight, types[2])) for weight in weights]
        for threads in (1, 3):
            calls.set_num_threads(threads)
            outs = [empty((tokens, weight.shape[0]), types[2]) for weight in weights]
            calls.linear(x, weights, outs)
            assert [bits(out) for out in outs] == alone


@products
def test_linear_packs_no_more_tokens_than_its_scratch_holds(types: Types) -> None:
    # 8 MiB hold 174 tokens of 12 000 elements.
    x, weight = operands((190, 12_000, 3), *types[:2])
    whole = run_linear(x, weight, types[2])
    parts = [run_linear(x[i : i + 95], weight, types[2]) for i in (0, 95)]
    assert bits(np.concatenate(parts)) == bits(whole)


def test_scratch_grows_with_threads_and_with_very_long_rows_only() -> None:
    size = calls.lib.product_scratch_bytes
    assert size(1, 2) == size(128_256, 2) < 13 * 2**20
    assert size(4096, 4) - size(4096, 2) < 5 * 2**20
    assert size(10**6, 1) < 7 * 4 * 10**6


@all_products
def test_a_product_over_nothing_is_zero_and_the_bias(isa: str, types: Types) -> None:
    bias = normal((9,), bf16)
    for tokens, given in product((0, 1, 4, 7, 16, 130), (None, bias)):
        x, weight = operands((tokens, 0, 9), *types[:2])
        out = empty((tokens, 9), types[2])
        calls.linear(x, [weight], [out], [given])
        assert (out == (0 if given is None else bias.astype(types[2]))).all()


@all_products
def test_a_bias_is_added_to_the_sum_before_it_is_rounded(isa: str, types: Types) -> None:
    for tokens, dtype in product((1, 7, 130), (bf16, f16, f32)):
        x, weight = operands((tokens, 96, 70), *types[:2])
        bias = normal((70,), dtype, seed=2)
        out = empty((tokens, 70), types[2])
        calls.linear(x, [weight], [out], [bias])
        exact = run_linear(x, weight, f32)
        assert bits(out) == bits((exact + bias.astype(f32)).astype(types[2]))


def test_the_reference_is_within_the_bound_of_a_plain_sum() -> None:
    x = normal((7, 33), f32)
    weight = normal((5, 33), f32, seed=1)
    bias = normal((5,), f32, seed=2)
    out = empty((7, 5), f32)
    calls.linear_reference(x, weight, out, bias)
    wide_x = x.astype(np.float64)
    wide_weight = weight.astype(np.float64)
    magnitude = np.abs(wide_x) @ np.abs(wide_weight).T + np.abs(bias)
    assert (
        np.abs(out - (wide_x @ wide_weight.T + bias)) <= 34 * 2.0**-24 * magnitude
    ).all()
