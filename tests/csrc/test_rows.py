"""The kernels on rows and spans: right within a bound, and the same bits however they are
run.

The probes read every byte once, and count what they multiply.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from . import calls
from .operands import (
    UNIT_ROUNDOFF,
    Array,
    bf16,
    bits,
    check_same_bits,
    empty,
    f16,
    f32,
    normal,
)

PROBED = [0, 1, 3, 4, 7, 8, 63, 64, 65, 1000, 4096, 100_003, (3 << 20) + 5]
SIZES = [1, 2, 15, 16, 17, 31, 33, 255, 256, 257, 700]
activations = pytest.mark.parametrize("dtype", [bf16, f32], ids=str)


def close(out: Array, expected: Array, float32_error: float) -> None:
    """Check against float64: one rounding to the dtype and a relative error inside."""
    error = np.abs(out.astype(np.float64) - expected)
    smallest = float(ml_dtypes.finfo(out.dtype).smallest_subnormal)
    bound = (UNIT_ROUNDOFF[out.dtype] + float32_error) * np.abs(
        expected
    ) + 1024 * smallest
    assert (error <= bound).all()


def run_softmax(x: Array, dtype: Any = f32) -> Array:
    out = empty(x.shape, dtype)
    calls.softmax(x, out)
    return out


def run_norm(x: Array, weight: Array, dtype: Any = f32) -> Array:
    out = empty(x.shape, dtype)
    calls.rms_norm(x, weight, 1e-5, out)
    return out


def run_rotary(x: Array, frequencies: Array, halves: bool = False) -> Array:
    out = empty(x.shape, x.dtype)
    calls.rotary(x, frequencies, out, halves)
    return out


def angles(tokens: int, half: int) -> Array:
    turns = np.random.default_rng(5).uniform(-3, 3, (tokens, half))
    return np.exp(1j * turns).astype(np.complex64)


@activations
def test_softmax_is_right(isa: str, dtype: Any) -> None:
    for n in SIZES:
        x = (8 * normal((3, n), f32)).astype(dtype)
        wide = x.astype(np.float64)
        expected = np.exp(wide - wide.max(axis=1, keepdims=True))
        expected /= expected.sum(axis=1, keepdims=True)
        for out_dtype in (f32, bf16):
            # x - max is rounded once, and its error goes through exp as a relative one.
            close(run_softmax(x, out_dtype), expected, 2.0**-24 * (64 + n / 16))


def test_softmax_leaves_bits_alone_when_masked_columns_follow(isa: str) -> None:
    x = normal((2, 21), f32)
    alone = run_softmax(x)
    for masked in (1, 11, 12, 300):
        tail = np.full((2, masked), -np.inf, np.float32)
        out = run_softmax(np.concatenate([x, tail], axis=1))
        assert bits(out[:, :21]) == bits(alone)
        assert not out[:, 21:].any()


def test_softmax_of_finite_scores_is_never_nan(isa: str) -> None:
    for x in (
        [3e38, -3e38, 1.0],
        [1e4, -1e4, 0.0],
        [-3e38, -3e38, -3e38],
        [0.0, -0.0, 1e-45],
    ):
        out = run_softmax(np.array([x], np.float32))
        assert np.isfinite(out).all()
        assert abs(out.sum() - 1) < 1e-6


def test_softmax_of_a_masked_row_or_of_nan_is_nan_as_in_pytorch(isa: str) -> None:
    x = np.zeros((4, 20), np.float32)
    x[0] = -np.inf
    x[1, 17] = np.nan
    x[2, 3] = np.inf
    out = run_softmax(x)
    assert np.isnan(out[:3]).all()
    np.testing.assert_array_equal(out[3], np.full(20, 0.05, np.float32))


def test_exp_is_within_two_units_and_right_at_the_extremes(isa: str) -> None:
    # softmax of [0, x] is exp(x) / (1 + exp(x)): for x far below 0, exp(x) itself.
    x = np.concatenate([np.linspace(-87.3, -17, 20001), np.linspace(-103.9, -87.4, 500)])
    x = x.astype(np.float32)
    rows = np.stack([np.zeros_like(x), x], axis=1)
    out = run_softmax(rows)[:, 1].astype(np.float64)
    expected = np.exp(x.astype(np.float64)) / (1 + np.exp(x.astype(np.float64)))
    unit = np.spacing(expected.astype(np.float32)).astype(np.float64)
    assert (np.abs(out - expected) <= 2.5 * unit).all()
    ends = np.array([[0, -103.0], [0, -104.0], [0, -1e30], [0, -np.inf]], np.float32)
    np.testing.assert_array_equal(run_softmax(ends)[:, 1], np.float32([1e-45, 0, 0, 0]))


@activations
def test_rms_norm_is_right(isa: str, dtype: Any) -> None:
    for n, weight_dtype in product(SIZES, (bf16, f16, f32)):
        x = normal((3, n), dtype)
        weight = normal((n,), weight_dtype, seed=1)
        wide = x.astype(np.float64)
        scale = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5)
        for out_dtype in (bf16, f32):
            out = run_norm(x, weight, out_dtype)
            close(out, wide * scale * weight.astype(np.float64), 2.0**-24 * (10 + n / 16))


def test_rms_norm_of_zeros_is_zero_and_of_nan_is_nan(isa: str) -> None:
    x = np.zeros((2, 40), np.float32)
    x[1, 39] = np.nan
    out = run_norm(x, np.ones(40, np.float32))
    assert not out[0].any()
    assert np.isnan(out[1]).all()


@activations
@pytest.mark.parametrize(
    "shape", [(1, 1, 2), (3, 2, 6), (5, 3, 64), (2, 2, 514)], ids=str
)
def test_rotary_is_multiplication_by_complex_numbers(
    isa: str, dtype: Any, shape: tuple[int, int, int]
) -> None:
    x = normal(shape, dtype)
    frequencies = angles(shape[0], shape[2] // 2)
    pairs = x.astype(np.float64).reshape(*shape[:2], -1, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * frequencies.astype(np.complex128)[
        :, None
    ]
    expected = np.stack([turned.real, turned.imag], axis=-1).reshape(shape)
    error = np.abs(run_rotary(x, frequencies).astype(np.float64) - expected)
    size = np.repeat(np.abs(turned), 2, axis=-1)
    assert (error <= (UNIT_ROUNDOFF[dtype] + 2.0**-22) * size).all()


@activations
def test_rotary_of_halves_has_the_bits_of_the_pairs_put_side_by_side(
    isa: str, dtype: Any
) -> None:
    for h in (2, 6, 64, 254, 256, 258, 770):
        x = normal((5, 3, h), dtype)
        frequencies = angles(5, h // 2)
        halves = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
        turned = run_rotary(halves, frequencies, halves=True)
        assert bits(turned) == bits(run_rotary(x, frequencies))


def sigmoid_product(x: Array, y: Array) -> Array:
    return x / (1 + np.exp(-x)) * y


def gelu_product(x: Array, y: Array) -> Array:
    """Return x * sigmoid(2 u) * y, which is x * (1 + tanh(u)) / 2 * y."""
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return x * np.exp(-np.logaddexp(0, -2 * u)) * y


def clamped_product(x: Array, y: Array) -> Array:
    gate = np.minimum(x, 7)
    return (np.clip(y, -7, 7) + 1) * sigmoid_product(1.702 * gate, np.float64(1)) / 1.702


ELEMENTWISE: list[tuple[str, Callable[..., Array], float]] = [
    ("add", np.add, 2.0**-24), ("multiply", np.multiply, 2.0**-24),
    ("swiglu", sigmoid_product, 2.0**-21 + 2.0**-24),
    ("geglu", gelu_product, 2.0**-15),
    ("clamped_swiglu", clamped_product, 2.0**-19),
    ("silu", lambda x, _: sigmoid_product(x, np.float64(1)), 2.0**-21),
]  # fmt: skip


@activations
@pytest.mark.parametrize(
    ("name", "formula", "error"), ELEMENTWISE, ids=lambda v: str(v)[:8]
)
def test_operands_are_combined_in_float32_and_rounded_once(
    isa: str, dtype: Any, name: str, formula: Callable[..., Array], error: float
) -> None:
    for n in SIZES:
        a = (6 * normal((n,), f32)).astype(dtype)
        b = normal((n,), dtype, seed=1)
        out = empty((n,), dtype)
        calls.elementwise(name, a, None if name == "silu" else b, out)
        close(out, formula(a.astype(np.float64), b.astype(np.float64)), error)


def test_silu_does_not_overflow_and_passes_nan_on(isa: str) -> None:
    x = np.array([-3e38, -1000, -90, 0, 90, 3e38, np.inf, np.nan], np.float32)
    out = empty(x.shape, f32)
    calls.elementwise("silu", x, None, out)
    np.testing.assert_array_equal(
        out[[0, 1, 3, 4, 5, 6]], np.float32([0, 0, 0, 90, 3e38, np.inf])
    )
    assert abs(out[2] / (-90 * np.exp(-90.0)) - 1) < 1e-5
    assert np.isnan(out[7])


def test_geglu_does_not_overflow_and_passes_nan_on(isa: str) -> None:
    x = np.array([-3e38, -1000, 0, 90, 3e38, np.inf, np.nan], np.float32)
    out = empty(x.shape, f32)
    calls.elementwise("geglu", x, np.ones_like(x), out)
    np.testing.assert_array_equal(out[:6], np.float32([0, 0, 0, 90, 3e38, np.inf]))
    assert np.isnan(out[6])


def test_clamped_swiglu_has_its_limits_and_passes_nan_on(isa: str) -> None:
    gate = np.array([-3e38, 0, 7, 8, np.inf, 7, 7, 7, np.nan, 7], np.float32)
    up = np.array([1, 1, 1, 1, 1, 3e38, -np.inf, -8, 1, np.nan], np.float32)
    out = empty(gate.shape, f32)
    calls.elementwise("clamped_swiglu", gate, up, out)
    largest = 7 / (1 + np.exp(-1.702 * 7))
    factors = [0, 0, 2, 2, 2, 8, -6, -6]
    np.testing.assert_allclose(out[:8], np.float32(factors) * largest, rtol=1e-6)
    assert np.isnan(out[8:]).all()


@activations
@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_soft_cap_is_a_scaled_tanh(isa: str, dtype: Any, cap: float) -> None:
    for n in SIZES:
        x = (20 * normal((n,), f32)).astype(dtype)
        x[n // 2 :] = (x[n // 2 :].astype(np.float32) * 1e-3).astype(dtype)
        out = empty((n,), dtype)
        calls.soft_cap(x, cap, out)
        close(out, cap * np.tanh(x.astype(np.float64) / cap), 2.0**-21)


def test_soft_cap_keeps_signs_infinities_and_nan(isa: str) -> None:
    x = np.array([-np.inf, -3e38, -0.0, 0.0, 1e-30, np.inf, np.nan], np.float32)
    out = empty(x.shape, f32)
    calls.soft_cap(x, 2.0, out)
    np.testing.assert_array_equal(out, np.float32([-2, -2, 0, 0, 1e-30, 2, np.nan]))
    assert np.signbit(out).tolist()[:4] == [True, True, True, False]


@activations
def test_elementwise_results_may_replace_an_operand(isa: str, dtype: Any) -> None:
    a = normal((1000,), dtype)
    b = normal((1000,), dtype, seed=1)
    apart = empty((1000,), dtype)
    together = a.copy()
    calls.elementwise("swiglu", a, b, apart)
    calls.elementwise("swiglu", together, b, together)
    assert bits(apart) == bits(together)


@pytest.mark.parametrize("matrix", [bf16, f16, f32], ids=str)
@activations
def test_changes_of_adapters_are_products_of_two_matrices(
    isa: str, dtype: Any, matrix: Any
) -> None:
    T, inner, outer = 11, 300, 520
    x = normal((T, inner), dtype)
    rows = np.array([10, 0, 3, 4, 5, 6, 7, 8, 9, 1, 3], np.intp)
    adapters = [
        calls.LowRank(normal((3, inner), matrix), normal((3, outer), matrix), 2.0, 0, 9),
        calls.LowRank(normal((5, inner), matrix), normal((5, outer), matrix), -0.5, 9, 2),
    ]
    low = empty((9 * 3 + 2 * 5,), f32)
    calls.low_rank_products(x, rows, adapters, low)
    before = normal((T, outer), f32)
    out = before.copy()
    rounded = empty((T, outer), dtype)
    calls.add_low_rank_changes(out, rows, adapters, low, rounded)
    assert bits(rounded) == bits(out.astype(dtype))
    expected = before.astype(np.float64)
    size = np.abs(expected)
    for adapter in adapters:
        a = adapter.a.astype(np.float64)
        b = adapter.b.astype(np.float64)
        for token in rows[adapter.first : adapter.first + adapter.count]:
            product_with_a = a @ x[token].astype(np.float64)
            absolute = np.abs(a) @ np.abs(x[token].astype(np.float64))
            expected[token] += adapter.factor * product_with_a @ b
            size[token] += abs(adapter.factor) * absolute @ np.abs(b)
    # A lane adds 19 products, four folds follow, then at most 5 products are added.
    assert (np.abs(out - expected) <= 32 * UNIT_ROUNDOFF[f32] * size).all()


@activations
def test_argmax_finds_the_first_maximum(isa: str, dtype: Any) -> None:
    for n in SIZES:
        x = np.random.default_rng(n).integers(-3, 4, (6, n)).astype(dtype)
        x[0] = -np.inf
        x[1, n - 1] = np.inf
        x[2, [n // 2, n - 1]] = np.nan
        x[3, n // 3] = np.inf
        x[3, n - 1] = np.nan
        out = np.full(6, -1, np.int32)
        calls.argmax(x, out)
        np.testing.assert_array_equal(out, x.astype(np.float32).argmax(axis=1))


def test_every_row_kernel_gives_the_same_bits_on_every_instruction_set_and_thread_count() -> (
    None
):
    x = (5 * normal((9, 4500), f32)).astype(ml_dtypes.bfloat16)
    weight = normal((4500,), bf16, seed=1)
    frequencies = angles(9, 15)
    rows = np.arange(9, dtype=np.intp)[::-1].copy()
    matrices = normal((7, 4500), f16), normal((7, 4500), bf16)
    adapter = calls.LowRank(*matrices, factor=0.3, first=0, count=9)

    def run() -> bytes:
        gated = empty(x.shape, bf16)
        narrow = empty(x.shape, f16)
        calls.elementwise("swiglu", x, x, gated)
        calls.convert(x, narrow)
        heads = x.reshape(9, 150, 30)
        turned = [run_rotary(heads, frequencies, halves) for halves in (False, True)]
        low = empty((9 * 7,), f32)
        calls.low_rank_products(x, rows, [adapter], low)
        changed = normal(x.shape, f32, seed=2)
        calls.add_low_rank_changes(changed, rows, [adapter], low)
        parts = [run_softmax(x), run_norm(x, weight), *turned, gated, narrow]
        parts += [low, changed]
        return b"".join(bits(part) for part in parts)

    check_same_bits(run)


# ---- probes ----------------------------------------------------------------------------


def folded(data: np.ndarray) -> int:
    words = np.frombuffer(data[: data.size // 4 * 4].tobytes(), np.uint32)
    return int(np.bitwise_xor.reduce(words)) if words.size else 0


def test_every_word_is_read_once_in_any_number_of_streams_and_threads(isa: str) -> None:
    for size in PROBED:
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        for threads, streams in product((1, 2, 3), (1, 2, 4, 8)):
            calls.set_num_threads(threads)
            assert calls.probe_read(data, streams) == folded(data)


def test_any_dtype_and_place_is_read(isa: str) -> None:
    data = normal((33, 17), f32)
    assert calls.probe_read(data[3:], 4) == folded(data[3:].reshape(-1).view(np.uint8))
    odd = np.arange(101, dtype=np.uint8)[1:]
    assert calls.probe_read(odd, 8) == folded(odd)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_multiply_adds_are_counted_by_thread_and_round(isa: str, dtype: str) -> None:
    calls.set_num_threads(1)
    one = calls.probe_multiply_add(dtype, 10)
    calls.set_num_threads(2)
    assert calls.probe_multiply_add(dtype, 30) == 2 * 3 * one
    lanes = {"avx2": 8, "portable": 0, "neon": 4, "neondot": 4, "neonbf16": 4}.get(
        isa, 16
    )
    pairs = 2 if isa.endswith(("bf16", "amx")) and dtype == "bfloat16" else 1
    assert one == 10 * 12 * lanes * 2 * pairs
