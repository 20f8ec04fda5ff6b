"""The rows of the dtype table, and Python numbers on their way into a tensor."""

import inspect
import operator
import re
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any

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
    dtype = getattr(ml, name)
    numpy_dtype = np.dtype(getattr(ml_dtypes, name, name))
    assert (dtype.name, dtype.numpy_dtype) == (name, numpy_dtype)
    bits = dtype.bits_dtype
    assert (dtype.itemsize, bits.itemsize, bits.kind) == (
        *[numpy_dtype.itemsize] * 2,
        "u",
    )
    assert dtype.is_float == (kind == "float")
    assert repr(dtype) == str(dtype) == name
    assert from_numpy_dtype(numpy_dtype) is dtype


def test_a_dtype_without_a_row_is_refused_with_the_names_of_those_that_have_one():
    names = ", ".join(row.name for row in ml.DTYPES)
    for code in (
        "f8",
        "u8",
        "i2",
        "c16",
        "S3",
        "O",
        ">f4",
        ">u2",
        "M8[s]",
        [("a", "f4")],
    ):
        text = f"[from_numpy] array.dtype must be one of {names}: {np.dtype(code)!r}"
        with pytest.raises(ml.DTypeError, match=f"^{re.escape(text)}$"):
            from_numpy_dtype(np.dtype(code))


def test_block_quantized_types_say_how_they_are_stored_and_have_no_size_per_element():
    rows = [
        (str(d), d.block_size, d.codes, d.codes_per_item, d.scales)
        for d in ml.BLOCK_DTYPES
    ]
    assert rows == [
        ("nf4", 64, ml.uint8, 2, ml.float32),
        ("int8_block", 32, ml.int8, 1, ml.bfloat16),
    ]
    assert not any(
        dtype.is_float or hasattr(dtype, "itemsize") for dtype in ml.BLOCK_DTYPES
    )


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
        (float("nan"), ml.bfloat16, np.nan),
    ],
)
def test_a_number_is_rounded_to_the_dtype(value, dtype, expected):
    result = checked_scalar("op", value, dtype)
    assert result.dtype == dtype.numpy_dtype
    assert result == expected or np.isnan([result, expected]).all()


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
        (256, ml.uint8),
        (-1, ml.uint16),
        (2**31, ml.int32),
        (2**63, ml.int64),
    ],
)
def test_a_number_of_another_kind_or_beyond_the_range_of_integers_is_refused(
    value, dtype
):
    is_integer = type(value) is int and dtype.kind == "int"
    text = (
        rf"in .* {dtype}: {value}$"
        if is_integer
        else f"a number of the kind of {dtype}: "
    )
    with pytest.raises(ml.TensorError, match=rf"^\[op\] value must be {text}") as caught:
        checked_number("op", value, dtype)
    assert (caught.type is ml.DTypeError) != is_integer


# ---- names -----------------------------------------------------------------------------

X = ml.Tensor.from_numpy(np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64))
IDS = ml.tensor([1, 0], dtype=ml.int32)
WEIGHT = ml.Tensor.from_numpy(np.eye(64, dtype=np.float32))
ROW = ml.ones(64)
STACK = ml.ExpertWeights([WEIGHT])
EXPERTS = ml.zeros(2, 1, dtype=ml.int32)
QUANTIZED = ml.quantize(X, ml.int8_block)
# For each function with an argument `dtype`: a call, and dtypes that it takes.
FLOATS = (ml.bfloat16, ml.float32)
CALLS: dict[str, tuple[Callable[[Any], Any], Sequence[ml.DType]]] = {
    "KeyValueCache": (lambda d: ml.KeyValueCache(4, 1, 2, d).keys, FLOATS),
    "KeyValueCache.bytes_for": (lambda d: ml.KeyValueCache.bytes_for(4, 1, 2, d), FLOATS),
    "KeyValueCache.row_bytes": (lambda d: ml.KeyValueCache.row_bytes(2, d), FLOATS),
    "QuantizedTensor": (
        lambda d: ml.QuantizedTensor(d, (2, 64), *QUANTIZED.parts()),
        (ml.int8_block,),
    ),
    "QuantizedTensor.dequantize": (lambda d: QUANTIZED.dequantize(d), FLOATS),
    "Tensor": (lambda d: ml.Tensor(np.zeros(8, np.uint8), (2,), (4,), d), ml.DTYPES[:3]),
    "Tensor.cumsum": (lambda d: X.cumsum(0, d), FLOATS),
    "Tensor.empty": (lambda d: ml.Tensor.empty((2, 0), d), ml.DTYPES),
    "Tensor.from_buffer": (lambda d: ml.Tensor.from_buffer(bytes(8), d, (1,)), ml.DTYPES),
    "Tensor.log_softmax": (lambda d: X.log_softmax(0, d), FLOATS),
    "Tensor.matmul": (lambda d: X.matmul(WEIGHT, d), FLOATS),
    "Tensor.softmax": (lambda d: X.softmax(0, d), FLOATS),
    "Tensor.sum": (lambda d: X.sum(0, dtype=d), FLOATS),
    "Tensor.to": (lambda d: X.to(d), ml.DTYPES[:7]),
    "arange": (lambda d: ml.arange(4, dtype=d), ml.DTYPES),
    "cumsum": (lambda d: ml.cumsum(X, 0, d), FLOATS),
    "expert_hidden": (lambda d: ml.expert_hidden(X, EXPERTS, STACK, STACK, d), FLOATS),
    "eye": (lambda d: ml.eye(3, dtype=d), ml.DTYPES),
    "full": (lambda d: ml.full((2,), 1, d), ml.DTYPES),
    "get_rows": (lambda d: ml.get_rows(X, IDS, d), FLOATS),
    "linear_transformation": (lambda d: ml.linear_transformation(X, WEIGHT, d), FLOATS),
    "linear_transformations": (
        lambda d: ml.linear_transformations(X, [WEIGHT], d)[0],
        FLOATS,
    ),
    "linspace": (lambda d: ml.linspace(0, 1, 3, dtype=d), FLOATS),
    "log_softmax": (lambda d: ml.log_softmax(X, 0, d), FLOATS),
    "matmul": (lambda d: ml.matmul(X, WEIGHT, d), FLOATS),
    "ones": (lambda d: ml.ones(2, dtype=d), ml.DTYPES),
    "quantize": (
        lambda d: ml.quantize(X, d),
        (*ml.BLOCK_DTYPES, ml.GGML_DTYPES[2], ml.GGML_DTYPES[8]),
    ),
    "rand": (lambda d: ml.rand(2, generator=ml.Generator(1), dtype=d), FLOATS),
    "randn": (lambda d: ml.randn(2, generator=ml.Generator(1), dtype=d), FLOATS),
    "rms_norm": (lambda d: ml.rms_norm(X, ROW, 1e-5, d), FLOATS),
    "softmax": (lambda d: ml.softmax(X, 0, d), FLOATS),
    "sum": (lambda d: ml.sum(X, 0, dtype=d), FLOATS),
    "tensor": (lambda d: ml.tensor([1, 0], dtype=d), ml.DTYPES),
    "zeros": (lambda d: ml.zeros(2, dtype=d), ml.DTYPES),
}


def functions_with_a_dtype():
    """Return the public functions, classes and methods of `ml` whose signature has a
    dtype.
    """
    names = set()
    for name in ml.__all__:
        member = getattr(ml, name)
        is_error = inspect.isclass(member) and issubclass(member, Exception)
        if not callable(member) or is_error or isinstance(member, GenericAlias):
            continue
        methods = vars(member) if inspect.isclass(member) else {}
        places = {name: member} | {
            f"{name}.{method}": getattr(member, method)
            for method in methods
            if method[0] != "_" and hasattr(member, method)  # not a hint for a name
        }
        for place, function in places.items():
            if not callable(function):
                continue
            parameters = inspect.signature(function).parameters
            names |= {place for x in parameters.values() if x.name == "dtype"}
            assert all(
                x.name == "dtype" for x in parameters.values() if is_a_dtype(x, place)
            )
    return names


def is_a_dtype(parameter, place):
    """Whether a parameter is a dtype alone; a dtype may also follow sizes,
    as in `zeros`.
    """
    is_named = re.search(r"\bDType|\bBlockDType", str(parameter.annotation))
    return (
        is_named and place != "BlockDType" and parameter.kind != parameter.VAR_POSITIONAL
    )


def test_every_function_with_a_dtype_says_that_it_takes_a_name():
    assert functions_with_a_dtype() == CALLS.keys()
    for name in CALLS:
        function = operator.attrgetter(name)(ml)
        assert "str" in str(inspect.signature(function).parameters["dtype"].annotation)


@pytest.mark.parametrize("name", CALLS)
def test_a_dtype_by_its_name_is_the_dtype(name):
    call, dtypes = CALLS[name]
    for dtype in dtypes:
        by_name = call(dtype.name)
        expected = call(dtype)
        if isinstance(expected, int):
            assert by_name == expected
            continue
        assert by_name.dtype is expected.dtype is dtype
        assert by_name.shape == expected.shape
        for part, same in zip(by_name.parts(), expected.parts(), strict=True):
            if name not in (
                "KeyValueCache",
                "Tensor.empty",
            ):  # their elements are not set
                np.testing.assert_array_equal(part.bits(), same.bits())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "wrong", ["float31", "Float32", "", "nf5", 5, np.dtype("f4"), [1], float]
)
def test_no_other_name_and_no_other_object_is_a_dtype(name, wrong):
    with pytest.raises(ml.DTypeError, match=r"^\[\w+\] dtype=? must be "):
        CALLS[name][0](wrong)
