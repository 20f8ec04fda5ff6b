"""Conversions give the right bits for every short pattern,
and wherever rounding changes.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest

from . import calls, float_oracle
from .float_oracle import (
    EIGHT_BITS,
    LONG_PAIRS,
    SHORT_PAIRS,
    boundary_patterns,
    expected_patterns,
    rounded_to_float16,
    wrong_patterns,
)
from .operands import bf16, f16, f32
from .run_all_floats import check_share


def name_of(pair: Any) -> str:
    return "-".join(map(str, pair))


def ties_of_8_bits() -> Any:
    """Make the float32 patterns near each number of 8 bits,
    and between it and the next.
    """
    numbers = np.arange(256, dtype=np.uint8)
    wide = np.concatenate(
        [np.sort(numbers.view(dtype).astype(f32)) for dtype in EIGHT_BITS]
    )
    ends = np.concatenate([wide, (wide[1:] + wide[:-1]) / 2, wide * 1.04])
    near = ends[np.isfinite(ends)].view(np.uint32).astype(np.int64)[:, None] + np.arange(
        -3, 4
    )
    return near.ravel().astype(np.uint32)


@pytest.mark.parametrize("pair", SHORT_PAIRS, ids=name_of)
def test_every_pattern_of_bfloat16_and_float16_is_converted_right(
    isa: str, pair: Any
) -> None:
    assert wrong_patterns(np.arange(2**16, dtype=np.uint16), *pair, [isa]) == {isa: []}


@pytest.mark.parametrize("pair", LONG_PAIRS, ids=name_of)
def test_float32_is_narrowed_right_around_every_tie_of_every_exponent(
    isa: str, pair: Any
) -> None:
    patterns = np.concatenate(
        [boundary_patterns(), ties_of_8_bits(), np.arange(0, 2**32, 16411, np.uint32)]
    )
    assert wrong_patterns(patterns, *pair, [isa]) == {isa: []}


def test_boundaries_lie_in_every_exponent_and_on_both_sides_of_each_tie() -> None:
    patterns = set(boundary_patterns().tolist())
    for top in range(512):
        for low in (
            0,
            1,
            0xFFF,
            0x1000,
            0x1001,
            0x3000,
            0x7FFF,
            0x8000,
            0x8001,
            0x18000,
            0x7FFFFF,
        ):
            assert top << 23 | low in patterns


def test_the_oracle_knows_numbers_that_are_written_down() -> None:
    for wide, brain, half in [
        (0x3F800000, 0x3F80, 0x3C00),  # 1
        (0x3F808000, 0x3F80, 0x3C04),  # a tie of bfloat16 goes to even
        (0x3F818000, 0x3F82, 0x3C0C),
        (0x3F801000, 0x3F80, 0x3C00),  # a tie of float16
        (0x7F7FFFFF, 0x7F80, 0x7C00),  # too large
        (0x80000001, 0x8000, 0x8000),  # too small keeps its sign
        (0x33000001, 0x3300, 0x0001),  # just above half of float16's least
        (0x7F800001, 0x7FC0, 0x7E00),  # a NaN whose payload is cut off
        (
            0xFFA12345,
            0xFFE1,
            0xFF09,
        ),  # a signalling NaN: quiet, with sign and upper payload
    ]:
        patterns = np.array([wide], np.uint32)
        assert expected_patterns(patterns, f32, bf16)[0] == brain
        assert expected_patterns(patterns, f32, f16)[0] == half
    signalling = np.array([0xFD01], np.uint16)
    assert expected_patterns(signalling, f16, f32)[0] == 0xFFE02000 | 0x400000
    assert expected_patterns(np.array([0xFF81], np.uint16), bf16, f32)[0] == 0xFF810000


def test_the_oracle_rounds_to_float16_as_numpy_does() -> None:
    numbers = boundary_patterns().view(f32)
    numbers = numbers[~np.isnan(numbers)]
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(
            rounded_to_float16(numbers), numbers.astype(f16).view(np.uint16)
        )


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_every_8_bit_float_is_widened_exactly_and_nan_stays_nan(
    isa: str, dtype: Any
) -> None:
    x = np.arange(256, dtype=np.uint8).view(dtype)
    out = np.zeros(256, f32)
    calls.convert(x, out)
    expected = x.astype(f32)
    nan = np.isnan(expected)
    assert out[~nan].tobytes() == expected[~nan].tobytes()
    assert np.isnan(out[nan]).all()
    assert (np.signbit(out[nan]) == np.signbit(expected[nan])).all()


def test_a_wrong_bit_is_seen(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = float_oracle.converted_patterns

    def flipped(patterns: Any, source: Any, target: Any) -> Any:
        out = right(patterns, source, target)
        out[17] ^= 1
        return out

    monkeypatch.setattr(float_oracle, "converted_patterns", flipped)
    assert (
        len(wrong_patterns(np.arange(2**10, dtype=np.uint32), f32, bf16, [isa])[isa]) == 1
    )


@pytest.mark.slow
def test_a_share_of_all_floats_is_converted_right(isa: str) -> None:
    for pair, start in product(
        LONG_PAIRS, (0x3F000000, 0x7F000000, 0xFF000000, 0x38000000)
    ):
        assert check_share((isa,), (pair, start)) == {isa: []}
