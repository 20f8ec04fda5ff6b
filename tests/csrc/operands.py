"""Random operands, bit comparison and the error bound of a sum in 16 lanes."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from src.ml import Tensor

from . import calls

Array = np.ndarray[Any, Any]

bf16 = np.dtype(ml_dtypes.bfloat16)
f16 = np.dtype(np.float16)
f32 = np.dtype(np.float32)
f8e4 = np.dtype(ml_dtypes.float8_e4m3fn)
f8e5 = np.dtype(ml_dtypes.float8_e5m2)

# x, weight and result of every product
PRODUCTS = [
    (bf16, bf16, bf16),
    (bf16, bf16, f32),
    (f32, f32, f32),
    (f32, f16, f32),
    (bf16, f8e4, bf16),
    (bf16, f8e5, f32),
    (f32, f8e4, f32),
    (f32, f8e5, f32),
    (f32, bf16, f32),
]
UNIT_ROUNDOFF = {bf16: 2.0**-8, f32: 2.0**-24}
tensor = Tensor.from_numpy


def normal(shape: tuple[int, ...], dtype: "np.dtype[Any]", seed: int = 0) -> Array:
    generator = np.random.default_rng([seed, *shape])
    return generator.standard_normal(shape).astype(dtype)


def empty(shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    """Make a result that is full of NaN, so that an element left out shows."""
    return np.full(shape, np.nan, dtype)


def run_linear(x: Array, weight: Any, dtype: "np.dtype[Any]" = f32) -> Array:
    out = empty((x.shape[0], weight.shape[0]), dtype)
    calls.linear(x, [weight], [out])
    return out


def check_same_bits(
    run: Callable[[], bytes], threads: Sequence[int] = (1, 2, 3, 7)
) -> None:
    """Run on each instruction set and number of threads, and compare."""
    first_with: dict[bytes, tuple[str, int]] = {}
    for isa in calls.available_isas():
        calls.set_isa(isa)
        for number in threads:
            calls.set_num_threads(number)
            first_with.setdefault(run(), (isa, number))
    assert len(first_with) == 1, list(first_with.values())


def bits(array: Array) -> bytes:
    """Return the bytes of an array, every NaN as one and the same."""
    words = np.ascontiguousarray(array)
    nan = np.isnan(words.astype(np.float32))
    return np.where(nan, np.array(np.nan, words.dtype), words).tobytes()


def check_products(out: Array, x: Array, weight: Array) -> None:
    """Check x [m, k] times weight [n, k] against float64.

    Each of the k/16 steps and 4 folds of a lane rounds once, relative to the sum of
    absolute products; the result rounds once more.
    """
    wide_x = x.astype(np.float64)
    wide_weight = weight.astype(np.float64)
    expected = wide_x @ wide_weight.T
    magnitude = np.abs(wide_x) @ np.abs(wide_weight).T
    steps = x.shape[-1] / 16 + 6
    bound = steps * 2.0**-24 * magnitude + UNIT_ROUNDOFF[out.dtype] * np.abs(expected)
    assert (np.abs(out.astype(np.float64) - expected) <= bound * 1.01).all()
