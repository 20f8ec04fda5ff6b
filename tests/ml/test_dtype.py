"""The rows of the dtype table."""

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.ml.dtype import from_numpy_dtype

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


@pytest.mark.parametrize(("dtype", "name", "itemsize", "kind", "numpy_type"), ROWS)
def test_a_row_says_name_size_kind_and_numpy_dtype(dtype, name, itemsize, kind, numpy_type):
    assert (dtype.name, dtype.itemsize, dtype.kind) == (name, itemsize, kind)
    assert dtype.numpy_dtype == np.dtype(numpy_type)
    assert dtype.bits_dtype.itemsize == itemsize
    assert dtype.bits_dtype.kind == "u"
    assert dtype.is_float == (kind == "float")
    assert repr(dtype) == str(dtype) == name
    assert from_numpy_dtype(np.dtype(numpy_type)) is dtype


def test_a_row_cannot_be_changed():
    with pytest.raises(AttributeError):
        ml.float32.itemsize = 8


@pytest.mark.parametrize(
    "numpy_type", ["f8", "u8", "i2", "c16", "S3", "O", ">f4", ">u2", "M8[s]", [("a", "f4")]]
)
def test_a_dtype_without_a_row_is_refused_with_the_names_of_those_that_have_one(numpy_type):
    with pytest.raises(ml.DTypeError) as caught:
        from_numpy_dtype(np.dtype(numpy_type))
    assert str(caught.value) == (
        f"[from_numpy] array.dtype must be one of {', '.join(row.name for row in ml.DTYPES)}: "
        f"{np.dtype(numpy_type)!r}"
    )


def test_block_quantized_types_say_how_they_are_stored_and_have_no_size_per_element():
    rows = [(d.name, d.block_size, d.codes, d.codes_per_item, d.scales) for d in ml.BLOCK_DTYPES]
    assert rows == [
        ("nf4", 64, ml.uint8, 2, ml.float32), ("int8_block", 32, ml.int8, 1, ml.bfloat16)
    ]  # fmt: skip
    for dtype in ml.BLOCK_DTYPES:
        assert repr(dtype) == str(dtype) == dtype.name
        assert not dtype.is_float
        assert not hasattr(dtype, "itemsize")
