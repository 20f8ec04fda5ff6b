"""The rows of the dtype table, and Python numbers on their way into a tensor."""

import re

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.ml.dtype import checked_number, checked_scalar, from_numpy_dtype

ROWS = [
    (ml.bfloat16, "bfloat16", 2, "float", ml_dtypes.bfloat16),
    (ml.float16, "float16", 2, "float", np.float16),
    (ml.float32, "float32", 4, "float", np.float32),
    (ml.float8_e4m3fn, "float8_e4m3fn", 1, "float", ml_dtypes.float8_e4m3fn),
    (ml.float8_e5m2, "float8_e5m2", 1, "float", ml_dtypes.float8_e5m2),
    (ml.int64, "int64", 8, "int", np.int64),
    (ml.int32, "int32", 4, "int", np.int32),
    (ml.uint16, "uint16", 2, "int", np.uint16),
    (ml.int8, "int8", 1, "int", np.int8),
    (ml.uint8, "uint8", 1, "int", np.uint8),
    (ml.bool_, "bool", 1, "bool", np.bool_),
    (ml.complex64, "complex64", 8, "complex", np.complex64),
]


def test_the_table_holds_exactly_these_rows():
    assert tuple(row[0] for row in ROWS) == ml.DTYPES
    with pytest.raises(AttributeError):
        ml.float32.itemsize = 8


@pytest.mark.parametrize(("dtype", "name", "itemsize", "kind", "numpy_type"), ROWS)
def test_a_row_says_name_size_kind_and_numpy_dtype(dtype, name, itemsize, kind, numpy_type):
    assert (dtype.name, dtype.itemsize, dtype.kind) == (name, itemsize, kind)
    assert dtype.numpy_dtype == np.dtype(numpy_type)
    assert (dtype.bits_dtype.itemsize, dtype.bits_dtype.kind) == (itemsize, "u")
    assert dtype.is_float == (kind == "float")
    assert repr(dtype) == str(dtype) == name
    assert from_numpy_dtype(np.dtype(numpy_type)) is dtype


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
