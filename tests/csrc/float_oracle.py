"""What a conversion between bfloat16, float16 and float32, or to a float8, must give, bit
for bit.

ml_dtypes rounds to bfloat16, and to the two float8, whose NaN are its own too. To float16
a number is counted in float64 in units of its last place, because NumPy takes a
microsecond where it rounds to 0 or to Inf (a test compares the two). What becomes of the
other NaN is written here in integers, because the kernels promise more than ml_dtypes
does: a NaN stays one, becomes quiet where it is narrowed or was a float16, and keeps its
sign and the upper bits of its payload.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from src import ml

from . import calls
from .operands import Array, bf16, f16, f32

BITS = {4: np.dtype(np.uint32), 2: np.dtype(np.uint16), 1: np.dtype(np.uint8)}
# Every plain float of the table that is smaller than float32, and all pairs of types:
# those whose source has only 2^16 patterns, and those whose source has 2^32.
SMALL = [row.numpy_dtype for row in ml.DTYPES if row.kind == "float" and row.itemsize < 4]
EIGHT_BITS = [dtype for dtype in SMALL if dtype.itemsize == 1]
SHORT_PAIRS = [(source, target) for source in (bf16, f16) for target in (*SMALL, f32)]
LONG_PAIRS = [(f32, target) for target in SMALL]


def expected_patterns(
    patterns: Array, source: "np.dtype[Any]", target: "np.dtype[Any]"
) -> Array:
    wide = _widened(patterns, source)
    return wide if target == f32 else _narrowed(wide, target)


def _widened(patterns: Array, source: "np.dtype[Any]") -> Array:
    if source == f32:
        return patterns
    wide = patterns.astype(np.uint32)
    if source == bf16:
        return wide << 16
    with np.errstate(invalid="ignore"):  # what Arm says of a signalling NaN
        result = patterns.view(f16).astype(f32).view(np.uint32)
    nan = np.isnan(result.view(f32))
    result[nan] = (wide[nan] & 0x8000) << 16 | 0x7FC00000 | (wide[nan] & 0x3FF) << 13
    return result


def rounded_to_float16(numbers: Array) -> Array:
    """Return the patterns of float16 nearest to float32 numbers, ties to even; NaN gives
    anything.

    |x| = n * 2^(max(e, -14) - 10) has the pattern n + (max(e, -14) + 14) * 2^10, n rounded.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.abs(numbers.astype(np.float64))
        exponents = np.maximum((wide.view(np.int64) >> 52) - 1023, -14)
        units = (1023 + 10 - exponents << 52).view(np.float64)
        counts = np.rint(wide * units)
        patterns = np.minimum(counts + (exponents + 14 << 10), 0x7C00).astype(np.uint16)
    return patterns | np.signbit(numbers).astype(np.uint16) << np.uint16(15)


def _narrowed(wide: Array, target: "np.dtype[Any]") -> Array:
    numbers = wide.view(f32)
    if target == f16:
        result = rounded_to_float16(numbers)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            result = numbers.astype(target).view(BITS[target.itemsize])
    nan = np.isnan(numbers)
    if nan.any() and target in (bf16, f16):
        given = wide[nan]
        if target == bf16:
            result[nan] = given >> 16 | 0x40
        else:
            result[nan] = given >> 16 & 0x8000 | 0x7E00 | given >> 13 & 0x3FF
    return result


def converted_patterns(
    patterns: Array, source: "np.dtype[Any]", target: "np.dtype[Any]"
) -> Array:
    out = np.full(patterns.shape, 0x12, BITS[target.itemsize])
    calls.convert(patterns.view(source), out.view(target))
    return out


def wrong_patterns(
    patterns: Array, source: "np.dtype[Any]", target: "np.dtype[Any]", isas: Iterable[str]
) -> dict[str, list[str]]:
    """Describe, for each path, the patterns that become others than they should."""
    wanted = expected_patterns(patterns, source, target)
    found = {}
    for isa in isas:
        calls.set_isa(isa)
        out = converted_patterns(patterns, source, target)
        found[isa] = [
            (
                f"{source} {patterns[i]:#x} -> {target}: expected {wanted[i]:#x}, got "
                f"{out[i]:#x}"
            )
            for i in np.flatnonzero(out != wanted)
        ]
    return found


def boundary_patterns() -> Array:
    """Make the float32 patterns at which rounding changes, for each sign and exponent.

    Around each power of two of the mantissa lie the ties of bfloat16, of float16 and of
    float16's subnormal numbers; each is taken with an even and with an odd bit above it,
    and with all bits.
    """
    powers = 1 << np.arange(23, dtype=np.int64)
    near = np.concatenate([powers - 1, powers, powers + 1])
    ties = np.concatenate([near, near + 2 * np.tile(powers, 3), ~near])
    mantissas = np.unique(ties & 0x7FFFFF)
    tops = np.arange(512, dtype=np.int64) << 23
    return (tops[:, None] + mantissas).ravel().astype(np.uint32)
