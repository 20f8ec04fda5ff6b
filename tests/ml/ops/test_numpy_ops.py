"""Ops of one NumPy function: each row of the table against its formula in float64."""

import math
from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml.op import OPS
from src.ml.ops import numpy_ops
from src.ml.ops.numpy_ops import (
    ROWS,
    Row,
    compared,
    floats_in_float64,
    in_float64,
    in_own_dtype,
    pair_op,
    unary_op,
)
from tests.ml.op_checks import (
    EVERY_DTYPE,
    EVERY_FLOAT,
    SHAPES,
    check_op,
    check_same,
    exact,
    sample,
    samples,
    strided,
)

UNARY = [row for row in ROWS.values() if row.rule is not compared]
COMPARISONS = [row for row in ROWS.values() if row.rule is compared]
EVERY_ROW = pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
EVERY_UNARY = pytest.mark.parametrize("row", UNARY, ids=lambda row: row.name)
EVERY_COMPARISON = pytest.mark.parametrize("row", COMPARISONS, ids=lambda row: row.name)
SPECIAL = [math.nan, math.inf, 0.0, -0.0, 1e38, -1e-40, 10.5, -1000.0, -20.0]
REAL = [row for row in ml.DTYPES if row.kind in ("float", "int")]
# The kinds of dtype that a rule accepts.
KINDS = {
    in_float64: ("float", "int"),
    floats_in_float64: ("float",),
    in_own_dtype: ("float", "int", "complex"),
}
# Formulas call functions by their names in NumPy, and the natural logarithm `ln`.
NAMES = {**vars(np), "ln": np.log}


def formula(row: Row, **operands: Any) -> Any:
    """Evaluate the formula of a row."""
    with np.errstate(all="ignore"):
        return eval(row.formula, dict(NAMES), operands)


def check_row(row: Row, x: ml.Tensor) -> ml.Tensor:
    """Hold the op of a row against its formula in float64."""
    terms = 0 if row.rule is in_own_dtype else 1
    return check_op(OPS[row.name], lambda x: formula(row, x=x), x, terms=terms)


# ---- the table -------------------------------------------------------------------------


@EVERY_ROW
def test_a_row_is_a_function_with_its_name_and_its_docstring(row):
    op = getattr(ml, row.name)
    assert op is OPS[row.name] is getattr(numpy_ops, row.name)
    assert (op.__name__, op.__qualname__) == (row.name, row.name)
    sections = [f"out = {row.formula}\n", "\nArgs:\n", "\nReturns:\n", "\nRaises:\n"]
    assert [text for text in sections if text not in op.__doc__] == []
    with pytest.raises(TypeError, match=rf"^{row.name}\(\) missing \d required"):
        op()


DOCSTRING = """\
Compute the exponential, element by element.

out = e ** x

Elements are computed in float64 and rounded through float32.

Args:
    x: A floating-point or integer tensor. Integers are converted to float32 first.

Returns:
    A tensor with the shape and dtype of `x`, or float32 for integers. It contains NaN
    where the function is not defined.

Raises:
    DTypeError: If the tensor is complex or bool.
"""


def test_a_docstring_consists_of_the_row_and_of_the_rule():
    assert ml.exp.__doc__ == DOCSTRING


@pytest.fixture
def sine(monkeypatch):
    """Make an op of one row for a test alone."""
    monkeypatch.setitem(OPS, "sine", None)
    monkeypatch.setitem(ROWS, "sine", None)
    return unary_op(Row("sine", np.sin, in_float64, "sin(x)", "the sine"))


def test_a_new_row_is_an_op_that_reports_itself(sine):
    x = sample((3, 4), ml.bfloat16)
    calls: list[ml.OpCall] = []
    ml.subscribe(calls.append)
    result = sine(x)
    ml.unsubscribe(calls.append)
    assert [(call.op, call.results) for call in calls] == [("sine", (result,))]
    check_same(check_row(ROWS["sine"], x), result.numpy())
    with pytest.raises(ml.TensorTypeError, match=r"^\[sine\] x must be a Tensor: list$"):
        sine([1.0])


@pytest.mark.parametrize("function", [np.cos, lambda x: np.sin(x) + 1e-6])
def test_a_row_whose_function_is_not_its_formula_is_found(sine, function):
    unary_op(Row("sine", function, in_float64, "sin(x)", "the sine"))
    with pytest.raises(AssertionError, match="elements are off"):
        check_row(ROWS["sine"], sample((3, 4)))


# ---- one tensor ------------------------------------------------------------------------


@EVERY_UNARY
@EVERY_FLOAT
def test_floats_are_the_formula_rounded(row, dtype):
    with np.errstate(over="ignore"):
        special = ml.Tensor.from_numpy(np.array(SPECIAL).astype(dtype.numpy_dtype))
    for x in (special, *(x for shape in SHAPES for x in samples(shape, dtype))):
        result = check_row(row, x)
        assert result.dtype is dtype
        assert result.is_contiguous


@EVERY_UNARY
@EVERY_DTYPE
def test_a_rule_accepts_its_dtypes_and_rejects_the_others(row, dtype):
    op = OPS[row.name]
    x = sample((3, 4), dtype)
    if dtype.kind not in KINDS[row.rule]:
        with pytest.raises(ml.DTypeError, match=rf"^\[{row.name}\] dtype must be "):
            op(x)
    elif row.rule is in_own_dtype:
        check_same(op(x), formula(row, x=x.numpy()))
    elif dtype.kind == "int":
        check_same(op(x), op(x.to(ml.float32)).numpy())
    else:
        assert op(x).dtype is dtype


@pytest.mark.parametrize("dtype", [ml.int64, ml.int32, ml.int8], ids=str)
def test_the_smallest_integer_wraps_around(dtype):
    smallest = np.iinfo(dtype.numpy_dtype).min
    x = ml.full((2,), smallest, dtype)
    assert ml.neg(x).tolist() == ml.abs(x).tolist() == [smallest] * 2


# ---- comparisons -----------------------------------------------------------------------


def check_comparison(row: Row, dtype: ml.DType) -> None:
    """Hold the op of a row, and the operator of its formula, against the formula."""
    pairs = [(ml.zeros((0, 1), dtype), ml.zeros((4,), dtype))]
    pairs += [(strided((3, 4), dtype), sample((4,), dtype, 1))]
    for shape in SHAPES:
        a, b = (ml.clip(sample(shape, dtype, seed), 0, 2) for seed in (1, 2))
        pairs += [(a, b), (a, a), (a, 1), (2, b)]
    for a, b in pairs:
        values = [exact(x) if isinstance(x, ml.Tensor) else x for x in (a, b)]
        expected = np.asarray(formula(row, a=values[0], b=values[1]))
        check_same(OPS[row.name](a, b), expected)
        check_same(formula(row, a=a, b=b), expected)


@EVERY_COMPARISON
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_comparisons_and_their_operators_are_the_formula(row, dtype):
    check_comparison(row, dtype)


@EVERY_COMPARISON
@EVERY_DTYPE
def test_comparisons_accept_every_dtype_and_order_no_complex_numbers(row, dtype):
    x = sample((3, 4), dtype)
    y = sample((3, 4), dtype, seed=1)
    is_order = row.name not in ("equal", "not_equal")
    if is_order and dtype.kind == "complex":
        with pytest.raises(ml.DTypeError, match=rf"^\[{row.name}\] operands must be re"):
            OPS[row.name](x, y)
    else:
        check_same(OPS[row.name](x, y), formula(row, a=exact(x), b=exact(y)))
    other = sample((3, 4), ml.int8 if dtype is ml.uint8 else ml.uint8)
    with pytest.raises(ml.DTypeError, match=rf"^\[{row.name}\] a.dtype must equal b.dt"):
        OPS[row.name](x, other)


def test_a_comparison_whose_function_is_not_its_formula_is_found(monkeypatch):
    monkeypatch.setitem(OPS, "wrong", None)
    monkeypatch.setitem(ROWS, "wrong", None)
    pair_op(Row("wrong", np.less, compared, "a <= b", "whether `a <= b`"))
    with pytest.raises(AssertionError, match="elements differ"):
        check_comparison(ROWS["wrong"], ml.int32)


def test_nan_equals_nothing_and_numbers_are_rounded_to_the_dtype_of_floats():
    x = ml.tensor([math.nan, math.inf, -0.0])
    assert (x == x).tolist() == [False, True, True]
    assert (x != x).tolist() == [True, False, False]
    assert (x == 0).tolist() == [False, False, True]
    for dtype in ("bfloat16", "float16", "float32"):
        assert (ml.full((1,), 0.1, dtype) == 0.1).item()


def test_integers_are_compared_with_any_number_exactly():
    x = ml.tensor([1, 2, 2**62])
    assert (x > 1.5).tolist() == [False, True, True]
    assert (x == 2**62).tolist() == [False, False, True]
    assert (x < 2**70).tolist() == [True, True, True]
    assert (ml.tensor([200], dtype="uint8") > -1).item()


def test_bools_and_complex_numbers_are_equal_or_not():
    mask = ml.tensor([True, False])
    assert (mask == True).tolist() == [True, False]  # noqa: E712
    assert (mask == ml.tensor([False, False])).tolist() == [False, True]
    assert (mask < 2**70).tolist() == [True, True]
    assert (ml.tensor([1j, 2]) == 1j).tolist() == [True, False]


def test_what_is_no_number_is_not_equal():
    x = ml.ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True  # type: ignore[comparison-overlap]
    with pytest.raises(TypeError):
        x < None  # noqa: B015
