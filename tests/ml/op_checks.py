"""Checks of ops against references, and the sample tensors for them.

The bound of `check_close`: `expected` is computed in float64 from inputs that were
rounded to the dtype first, so a correct op differs by one rounding of the result, `u *
|expected|`, and by what float32 arithmetic inside it loses, `terms * 2^-24 * magnitude`. `magnitude` is the sum of absolute
values that went into an element; where nothing can cancel it is `|expected|` itself.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from src import ml

FLOAT_DTYPES = (ml.bfloat16, ml.float16, ml.float32)
# Half a unit in the last place, relative, and the smallest normal number.
UNIT_ROUNDOFF = {ml.bfloat16: 2.0**-8, ml.float16: 2.0**-11, ml.float32: 2.0**-24}
SMALLEST_NORMAL = {ml.bfloat16: 2.0**-126, ml.float16: 2.0**-14, ml.float32: 2.0**-126}

SHAPES = [
    (),
    (1,),
    (7,),
    (0,),
    (3, 5),
    (3, 0),
    (0, 4),
    (2, 3, 4),
    (1, 1, 1),
    (2, 0, 3),
    (2, 3, 1, 5),
]
# Every dimension of each of them that has one, counted from both ends.
SHAPES_AND_DIMS = [
    (shape, dim) for shape in SHAPES for dim in range(-len(shape), len(shape))
]
INTEGERS = (ml.int64, ml.int32, ml.int8, ml.uint8, ml.uint16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)
EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
EVERY_CACHE_DTYPE = pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)

Array = np.ndarray[Any, Any]


def sample(
    shape: tuple[int, ...], dtype: ml.DType = ml.float32, seed: int = 0
) -> ml.Tensor:
    """Make a tensor of random elements: normal floats, small integers, complex numbers,
    bools.
    """
    generator = np.random.default_rng([seed, *shape])
    values: Array
    if dtype.kind == "int":
        values = generator.integers(0, 100, shape)
    elif dtype.kind == "bool":
        values = generator.integers(0, 2, shape)
    elif dtype.kind == "complex":
        values = generator.standard_normal(shape) + 1j * generator.standard_normal(shape)
    else:
        values = generator.standard_normal(shape)
    return ml.Tensor.from_numpy(np.asarray(values).astype(dtype.numpy_dtype))


def strided(
    shape: tuple[int, ...], dtype: ml.DType = ml.float32, seed: int = 0
) -> ml.Tensor:
    """Make a tensor of at least two dimensions that is a transposed view with gaps."""
    wide = (*shape[:-2], shape[-1], 2 * shape[-2])
    view = sample(wide, dtype, seed)[..., ::2].transpose(-1, -2)
    assert view.shape == shape
    return view


def samples(
    shape: tuple[int, ...], dtype: ml.DType = ml.float32, seed: int = 0
) -> Iterator[ml.Tensor]:
    """Make a packed sample, and a view with gaps where the shape allows one."""
    yield sample(shape, dtype, seed)
    if len(shape) > 1:
        yield strided(shape, dtype, seed)


def exact(x: ml.Tensor) -> Array:
    """Give the elements in float64 (complex128, int64, bool)."""
    kinds = {
        "float": np.float64,
        "int": np.int64,
        "complex": np.complex128,
        "bool": np.bool_,
    }
    wider = kinds[x.dtype.kind]
    return np.asarray(x.numpy().astype(wider))


def bits_of(x: ml.Tensor) -> Array:
    return np.array(x.bits())


def check_close(
    result: ml.Tensor,
    expected: Array,
    *,
    terms: float = 0.0,
    magnitude: Array | None = None,
) -> None:
    """Hold a result against float64 values; see the bound above."""
    values = exact(result)
    if result.shape != expected.shape:
        raise AssertionError(f"shape {result.shape} != {expected.shape}")
    special = ~np.isfinite(expected)
    if not np.array_equal(values[special], expected[special], equal_nan=True):
        raise AssertionError(f"infinities or NaNs differ: {values} != {expected}")
    values = values[~special]
    expected = expected[~special]
    size = np.abs(expected) if magnitude is None else magnitude[~special]
    bound = UNIT_ROUNDOFF[result.dtype] * np.abs(expected) * 1.001
    bound += terms * 2.0**-24 * size + SMALLEST_NORMAL[result.dtype] * 2.0**-6
    wrong = ~(np.abs(values - expected) <= bound)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} elements are off, the first (element {at}): "
            f"{values[at]} != {expected[at]}, bound {bound[at]:.3g}"
        )


def check_op(
    op: Callable[..., ml.Tensor],
    reference: Callable[..., Array],
    *inputs: ml.Tensor,
    terms: float = 0.0,
    absolute: Callable[..., Array] | None = None,
) -> ml.Tensor:
    """Run an op, and hold its result against a reference on the same inputs in float64.

    The inputs must stay as they are. `terms` float32 roundings may add up, of the
    magnitude that `absolute` computes from the absolute values of the inputs.
    """
    before = [bits_of(x) for x in inputs]
    result = op(*inputs)
    for x, old in zip(inputs, before, strict=True):
        if not np.array_equal(bits_of(x), old):
            raise AssertionError("an input was changed")
    arrays = [exact(x) for x in inputs]
    with np.errstate(all="ignore"):
        expected = np.asarray(reference(*arrays))
        magnitude = (
            None if absolute is None else np.asarray(absolute(*map(np.abs, arrays)))
        )
    check_close(result, expected, terms=terms, magnitude=magnitude)
    return result


def check_same(result: ml.Tensor, expected: Array) -> None:
    """Hold a result against an array of the same dtype, bit for bit; any NaN equals any
    other.
    """
    if result.dtype.numpy_dtype != expected.dtype:
        raise AssertionError(f"dtype {result.dtype} != {expected.dtype}")
    if result.shape != expected.shape:
        raise AssertionError(f"shape {result.shape} != {expected.shape}")
    mine = result.bits()
    other = np.ascontiguousarray(expected).view(result.dtype.bits_dtype)
    different = mine != other.reshape(mine.shape)
    if result.dtype.is_float:
        different &= ~(np.isnan(exact(result)) & np.isnan(expected.astype(np.float64)))
    if different.any():
        raise AssertionError(
            f"{different.sum()} of {different.size} elements differ: "
            f"{result.numpy()[different].flat[0]} != {expected[different].flat[0]}"
        )


def rounded(values: Array, dtype: ml.DType) -> Array:
    """Round float64 values to a dtype by way of float32, as the ops do."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32).astype(dtype.numpy_dtype)
