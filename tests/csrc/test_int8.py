"""Weights by integers: near the dequantized ones, and what numbers of any size give."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml import QuantizedTensor

from .operands import bf16, bits, f32, normal, run_linear, tensor
from .quantized_operands import (
    BLOCK,
    GGML_FORMATS,
    Format,
    elements,
    every_product,
    fused_multiply_add,
    integer_products,
    is_ggml,
    operands,
    parts_of,
    quantized,
    scales_of,
    whole_blocks,
    with_scales,
)

tokens_of_a_product = pytest.mark.parametrize("tokens", [1, 7])


@every_product
@tokens_of_a_product
def test_products_are_near_those_of_the_elements(
    isa: str, kind: Format, tokens: int
) -> None:
    """Hold products against float64.

    x is off by at most 2^-15 of the largest element of its group, or a 254th with 8 bits,
    an element of nf4 by 2^-12 of its scale; a lane rounds once for each half of a group
    that has a scale, and for its minimum.
    """
    x, weight = operands((tokens, 2112, 21), bf16, kind)
    # Wide ranges within groups.
    x *= np.exp2(normal(x.shape, f32, seed=3) * 6).astype(bf16)
    codes, scales, mins = parts_of(weight)
    scaled = codes.reshape(len(scales), -1) * scales.astype(np.float64)[:, None]
    apart = np.abs(scaled) + (
        0 if mins is None else np.abs(mins.astype(np.float64)[:, None])
    )
    wide_x = x.astype(np.float64)
    wide_weight = elements(weight).astype(np.float64)
    largest = np.abs(wide_x).reshape(tokens, -1, BLOCK).max(axis=-1)
    per_group = np.abs(wide_weight).reshape(21, -1, BLOCK).sum(axis=-1)
    per_lane = (
        x.shape[1]
        / BLOCK
        / 16
        * (2 * len(scales) // len(codes))
        * (1 + (mins is not None))
    )
    step = 1 / 254 if weight.activations == "int8" else 2.0**-15
    bound = step * largest @ per_group.T
    bound += (per_lane + 8) * 2.0**-24 * np.abs(wide_x) @ apart.reshape(weight.shape).T
    if weight.dtype is ml.nf4:
        levels = np.repeat(np.abs(scales_of(weight).astype(np.float64)), 64).reshape(
            weight.shape
        )
        bound += 2.0**-12 * np.abs(wide_x) @ levels.T
    error = np.abs(run_linear(x, weight) - wide_x @ wide_weight.T)
    assert (error <= bound * 1.01).all()
    assert (error > bound / 10_000).any()


def of_one_byte(kind: Format, byte: int) -> QuantizedTensor:
    """Make a weight whose codes are the same byte, with scales that are all equal."""
    weight = with_scales(quantized((17, whole_blocks(kind[0], 1088)), *kind), np.ones(1))
    codes = weight.codes.numpy()
    if not is_ggml(kind[0]):
        codes = np.full_like(codes, np.uint8(byte).view(codes.dtype))
        parts: tuple[Any, ...] = (weight.scales, weight.nested)
    else:
        blocks = codes.reshape(-1, weight.dtype.block_bytes)
        codes = np.where((blocks == blocks[0]).all(axis=0), blocks, np.uint8(byte))
        parts = ()
    changed = QuantizedTensor(weight.dtype, weight.shape, tensor(codes), *parts)
    return changed.with_activations(weight.activations)


@every_product
def test_the_largest_codes_times_numbers_do_not_overflow(isa: str, kind: Format) -> None:
    """255 * 2^7 steps of x times 2^11 of a level of nf4, 32 times, are 255 * 2^23."""
    for byte, tokens, sign in product((0x00, 0x7F, 0x80, 0x81, 0xFF), (1, 7), (1, -1)):
        weight = of_one_byte(kind, byte)
        x = np.full((tokens, weight.shape[1]), sign * 255 * 2.0**20, bf16)
        out = run_linear(x, weight)
        assert bits(out) == bits(integer_products(x, weight))
        codes, scales, mins = parts_of(weight)
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # of scales that are a byte of mxfp4
            wide = codes.reshape(len(scales), -1).astype(f32) * scales[:, None]
            wide = wide if mins is None else wide + mins[:, None]
            exact = x.astype(np.float64) @ wide.reshape(weight.shape).astype(np.float64).T
        np.testing.assert_allclose(out, exact, rtol=1e-5, atol=np.abs(exact).max() * 1e-5)


@every_product
def test_a_token_that_is_not_finite_gives_nan_and_the_others_do_not(
    isa: str, kind: Format
) -> None:
    x, weight = operands((7, 576, 5), bf16, kind)
    expected = np.delete(integer_products(x, weight), 3, axis=0)
    for at, value in ((0, np.nan), (31, np.inf), (33, -np.inf), (x.shape[1] - 1, np.nan)):
        given = x.copy()
        given[3, at] = value
        out = run_linear(given, weight)
        assert np.isnan(out[3]).all()
        assert np.isnan(run_linear(given[3:4], weight)).all()
        assert bits(np.delete(out, 3, axis=0)) == bits(expected)


CODES = {"q8_0": 256, "q4": 16, "q5": 32, "q2": 4, "q3": 8, "q6": 64, "iq": 16, "mx": 15}


@pytest.mark.parametrize("kind", GGML_FORMATS, ids=lambda kind: str(kind[0]))
def test_every_code_of_a_format_of_gguf_files_occurs_in_these_tests(kind: Format) -> None:
    codes: Any = parts_of(quantized((64, 1024), *kind))[0]
    name = kind[0].name
    assert np.unique(codes).size == CODES.get(name, CODES.get(name[:2]))


def test_the_emulation_of_fma_rounds_once() -> None:
    a = np.float32([1 + 2**-12, 1 + 2**-23, 3])
    b = np.float32([1 + 2**-12, 1 + 2**-23, 0.25])
    c = np.float32([-(1 + 2**-11), 2**-70, 2**24])
    expected = np.float32([2**-24, 1 + 2**-22, 2**24])
    np.testing.assert_array_equal(fused_multiply_add(a, b, c), expected)
    # A tie in float32 that only the last bit of the exact sum breaks.
    tie = fused_multiply_add(np.float32([2**-24]), np.float32([1]), np.float32([1]))
    above = fused_multiply_add(
        np.float32([2**-24]), np.float32([1 + 2**-20]), np.float32([1])
    )
    assert (tie[0], above[0]) == (1, np.nextafter(np.float32(1), np.float32(2)))
