"""Python numbers on their way into a tensor."""

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.ml.dtype import checked_number, checked_scalar


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.5, ml.float32, 1.5),
        (3, ml.bfloat16, 3.0),
        (np.float64(0.1), ml.float32, np.float32(0.1)),
        (ml_dtypes.bfloat16(2), ml.float16, 2.0),
        (1e300, ml.float32, np.inf),
        (-1e300, ml.bfloat16, -np.inf),
        (70000, ml.float16, np.inf),
        (1e-300, ml.float32, 0.0),
        (np.int64(-7), ml.int32, -7),
        (255, ml.uint8, 255),
        (1 + 2j, ml.complex64, 1 + 2j),
        (3, ml.complex64, 3 + 0j),
    ],
)
def test_a_number_is_rounded_to_the_dtype(value, dtype, expected):
    result = checked_scalar("op", value, dtype)
    assert result.dtype == dtype.numpy_dtype
    assert result == expected


def test_nan_stays_nan():
    assert np.isnan(checked_scalar("op", float("nan"), ml.bfloat16))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1j, ml.float32),
        (1.0, ml.int32),
        (True, ml.float32),
        (False, ml.int32),
        ("1", ml.float32),
        (b"1", ml.complex64),
        (None, ml.bfloat16),
        ([1], ml.float32),
        (10**400, ml.float32),
    ],
)
def test_a_number_of_another_kind_is_refused(value, dtype):
    with pytest.raises(ml.DTypeError) as caught:
        checked_number("op", value, dtype)
    assert str(caught.value) == (
        f"[op] value must be a number of the kind of {dtype}: {type(value).__name__}"
    )


@pytest.mark.parametrize(
    ("value", "dtype", "limits"),
    [
        (256, ml.uint8, "[0, 255]"),
        (-1, ml.uint16, "[0, 65535]"),
        (2**31, ml.int32, "[-2147483648, 2147483647]"),
    ],
)
def test_an_integer_beyond_the_range_is_refused(value, dtype, limits):
    with pytest.raises(ml.TensorError) as caught:
        checked_number("op", value, dtype)
    assert str(caught.value) == f"[op] value must be in {limits} for {dtype}: {value}"
