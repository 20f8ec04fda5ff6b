"""The rows of the dtype table, and Python numbers on their way into a tensor."""

import re

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.ml.dtype import checked_number, checked_scalar, from_numpy_dtype

NAMES = {
    "float": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "int": ("int64", "int32", "uint16", "int8", "uint8"), "bool": ("bool",),
    "complex": ("complex64",),
}  # fmt: skip
ROWS = [(kind, name) for kind, names in NAMES.items() for name in names]


def test_the_table_holds_exactly_these_rows():
    assert [(row.kind, row.name) for row in ml.DTYPES] == ROWS
    with pytest.raises(AttributeError):
        ml.float32.itemsize = 8


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_a_row_says_size_numpy_dtype_and_name(kind, name):
    dtype, numpy_dtype = getattr(ml, name), np.dtype(getattr(ml_dtypes, name, name))
    assert (dtype.name, dtype.numpy_dtype) == (name, numpy_dtype)
    bits = dtype.bits_dtype
    assert (dtype.itemsize, bits.itemsize, bits.kind) == (*[numpy_dtype.itemsize] * 2, "u")
    assert dtype.is_float == (kind == "float")
    assert repr(dtype) == str(dtype) == name
    assert from_numpy_dtype(numpy_dtype) is dtype


def test_a_dtype_without_a_row_is_refused_with_the_names_of_those_that_have_one():
    names = ", ".join(row.name for row in ml.DTYPES)
    for code in ("f8", "u8", "i2", "c16", "S3", "O", ">f4", ">u2", "M8[s]", [("a", "f4")]):
        text = f"[from_numpy] array.dtype must be one of {names}: {np.dtype(code)!r}"
        with pytest.raises(ml.DTypeError, match=f"^{re.escape(text)}$"):
            from_numpy_dtype(np.dtype(code))


def test_block_quantized_types_say_how_they_are_stored_and_have_no_size_per_element():
    rows = [(str(d), d.block_size, d.codes, d.codes_per_item, d.scales) for d in ml.BLOCK_DTYPES]
    assert rows == [
        ("nf4", 64, ml.uint8, 2, ml.float32), ("int8_block", 32, ml.int8, 1, ml.bfloat16)
    ]  # fmt: skip
    assert not any(dtype.is_float or hasattr(dtype, "itemsize") for dtype in ml.BLOCK_DTYPES)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.5, ml.float32, 1.5), (3, ml.bfloat16, 3.0),
        (np.float64(0.1), ml.float32, np.float32(0.1)), (ml_dtypes.bfloat16(2), ml.float16, 2.0),
        (1e300, ml.float32, np.inf), (-1e300, ml.bfloat16, -np.inf), (70000, ml.float16, np.inf),
        (1e-300, ml.float32, 0.0), (np.int64(-7), ml.int32, -7), (255, ml.uint8, 255),
        (1 + 2j, ml.complex64, 1 + 2j), (3, ml.complex64, 3 + 0j),
        (float("nan"), ml.bfloat16, np.nan),
    ],
)  # fmt: skip
def test_a_number_is_rounded_to_the_dtype(value, dtype, expected):
    result = checked_scalar("op", value, dtype)
    assert result.dtype == dtype.numpy_dtype
    assert result == expected or np.isnan([result, expected]).all()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1j, ml.float32), (1.0, ml.int32), (True, ml.float32), (False, ml.int32), ("1", ml.float32),
        (b"1", ml.complex64), (None, ml.bfloat16), ([1], ml.float32), (10**400, ml.float32),
        (256, ml.uint8), (-1, ml.uint16), (2**31, ml.int32), (2**63, ml.int64),
    ],
)  # fmt: skip
def test_a_number_of_another_kind_or_beyond_the_range_of_integers_is_refused(value, dtype):
    is_integer = type(value) is int and dtype.kind == "int"
    text = rf"in .* {dtype}: {value}$" if is_integer else f"a number of the kind of {dtype}: "
    with pytest.raises(ml.TensorError, match=rf"^\[op\] value must be {text}") as caught:
        checked_number("op", value, dtype)
    assert (caught.type is ml.DTypeError) != is_integer
