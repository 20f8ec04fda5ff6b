"""Ops that apply one NumPy function to each element, or to each pair of elements.

The table at the end has one row per op. The rule of a row computes the op, and the
docstring of the rule completes the docstring of the op.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol

import numpy as np

from ..checks import check_float, check_kind, checked_pair, comparable, rounded
from ..dtype import DType, bool_, checked_scalar, complex64, float32
from ..errors import DTypeError
from ..op import op
from ..tensor import Array, Tensor

P = ParamSpec("P")
NumpyFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One op.

    Attributes:
        name: The name of the op in `ml`, in messages and in traces.
        function: A function that takes and returns arrays, as NumPy's ufuncs do.
        rule: The dtype rule, which computes `rule(name, function, *operands)`.
        formula: The value of an element of the result, as a Python expression.
        result: The result in words, for the first line of the docstring.
    """

    name: str
    function: NumpyFunction
    rule: Callable[..., Tensor]
    formula: str
    result: str


# The rows of all ops by name.
ROWS: dict[str, Row] = {}


# ---- dtype rules -----------------------------------------------------------------------


def in_float64(op: str, function: NumpyFunction, x: Tensor) -> Tensor:
    """Elements are computed in float64 and rounded through float32.

    Args:
        x: A floating-point or integer tensor. Integers are converted to float32 first.

    Returns:
        A tensor with the shape and dtype of `x`, or float32 for integers. It contains NaN
        where the function is not defined.

    Raises:
        DTypeError: If the tensor is complex or bool.
    """
    if x._dtype.kind == "int":
        x = x.to(float32)
    return floats_in_float64(op, function, x)


def floats_in_float64(op: str, function: NumpyFunction, x: Tensor) -> Tensor:
    """Elements are computed in float64 and rounded through float32.

    Args:
        x: A floating-point tensor.

    Returns:
        A tensor with the shape and dtype of `x`. It contains NaN where the function is
        not defined.

    Raises:
        DTypeError: If the tensor is not floating point.
    """
    check_float(op, x)
    with np.errstate(all="ignore"):
        return rounded(function(x.numpy().astype(np.float64)), x._dtype)


def in_own_dtype(op: str, function: NumpyFunction, x: Tensor) -> Tensor:
    """Elements are computed in their own dtype. Integers wrap around on overflow.

    Args:
        x: A tensor of any dtype except bool.

    Returns:
        A tensor with the shape and dtype of `x`, or float32 if complex elements become
        real.

    Raises:
        DTypeError: If the tensor is bool.
    """
    check_kind(op, x, "float", "int", "complex")
    with np.errstate(all="ignore"):
        values = np.asarray(function(x.numpy()))
    return Tensor.from_numpy(values).copy()  # in row-major order


def compared(op: str, function: NumpyFunction, a: Any, b: Any) -> Tensor:
    """Tensors of integers are compared with any number exactly.

    Args:
        a: A tensor of any dtype, or a number. Next to a floating-point tensor, a number
            is rounded to the dtype of the tensor.
        b: A tensor with the same dtype and a shape that broadcasts, or a number. At least
            one operand must be a tensor.

    Returns:
        A bool tensor with the broadcast shape. NaN is not equal to any value.

    Raises:
        DTypeError: If the dtypes differ, or if complex numbers are ordered.
        ShapeError: If the shapes do not broadcast.
    """
    dtype, _ = checked_pair(op, a, b)
    values = [_comparable_operand(op, x, dtype) for x in (a, b)]
    is_complex = any(np.iscomplexobj(value) for value in values)
    if is_complex and function not in (np.equal, np.not_equal):
        raise DTypeError(f"[{op}] operands must be real: complex ({dtype})")
    with np.errstate(all="ignore"):
        return Tensor.from_numpy(np.asarray(function(*values)))


def _comparable_operand(op: str, x: Any, dtype: DType) -> Any:
    """Return an operand in a form that NumPy can compare.

    A number that is compared with integers is not rounded.
    """
    if isinstance(x, Tensor):
        return comparable(x).view(np.int8) if dtype is bool_ else comparable(x)
    if not isinstance(x, int | float | complex | np.number | np.bool_):
        raise TypeError  # @op names the argument
    if dtype.kind in ("int", "bool") or isinstance(x, complex | bool | np.bool_):
        return x
    return checked_scalar(op, x, dtype).astype(
        np.complex64 if dtype is complex64 else np.float32
    )


# ---- ops from rows ---------------------------------------------------------------------


class _UnaryOp(Protocol):
    """The type of an op on one tensor."""

    def __call__(self, x: Tensor) -> Tensor: ...


class _PairOp(Protocol):
    """The type of an op on two tensors, or on a tensor and a number."""

    def __call__(self, a: Tensor | complex, b: Tensor | complex) -> Tensor: ...


class _RealPairOp(Protocol):
    """The type of an op as in `_PairOp`, but without complex numbers."""

    def __call__(self, a: Tensor | float, b: Tensor | float) -> Tensor: ...


def unary_op(row: Row) -> _UnaryOp:
    """Make an op on one tensor from its row."""

    def apply(x: Tensor) -> Tensor:
        return row.rule(row.name, row.function, x)

    return _op_of_row(row, apply)


def pair_op(row: Row) -> _PairOp:
    """Make an op on two operands from its row."""

    def apply(a: Tensor | complex, b: Tensor | complex) -> Tensor:
        return row.rule(row.name, row.function, a, b)

    return _op_of_row(row, apply)


def real_pair_op(row: Row) -> _RealPairOp:
    """Make an op on two operands that must not be complex from its row."""

    def apply(a: Tensor | float, b: Tensor | float) -> Tensor:
        return row.rule(row.name, row.function, a, b)

    return _op_of_row(row, apply)


def _op_of_row(row: Row, function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Give a function the name and the docstring of a row, and make it an op."""
    ROWS[row.name] = row
    summary = f"Compute {row.result}, element by element."
    rule = inspect.cleandoc(row.rule.__doc__ or "")
    function.__doc__ = f"{summary}\n\nout = {row.formula}\n\n{rule}\n"
    function.__name__ = row.name
    function.__qualname__ = row.name
    return op(function)


# ---- functions that NumPy lacks --------------------------------------------------------


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


# ---- the table -------------------------------------------------------------------------
# Each row consists of the name, the function, the dtype rule, the formula and the result.

abs = unary_op(  # noqa: A001 (the field's word)
    Row("abs", np.absolute, in_own_dtype, "abs(x)", "the absolute value")
)
cos = unary_op(Row("cos", np.cos, in_float64, "cos(x)", "the cosine of an angle"))
exp = unary_op(Row("exp", np.exp, in_float64, "e ** x", "the exponential"))
log = unary_op(Row("log", np.log, in_float64, "ln(x)", "the natural logarithm"))
neg = unary_op(Row("neg", np.negative, in_own_dtype, "-x", "the negative"))
rsqrt = unary_op(
    Row("rsqrt", _rsqrt, floats_in_float64, "1 / sqrt(x)", "the reciprocal square root")
)
sigmoid = unary_op(
    Row("sigmoid", _sigmoid, in_float64, "1 / (1 + exp(-x))", "the logistic function")
)
sin = unary_op(Row("sin", np.sin, in_float64, "sin(x)", "the sine of an angle"))
sqrt = unary_op(Row("sqrt", np.sqrt, in_float64, "sqrt(x)", "the square root"))
tanh = unary_op(
    Row("tanh", np.tanh, in_float64, "1 - 2 / (exp(2 * x) + 1)", "the hyperbolic tangent")
)
equal = pair_op(Row("equal", np.equal, compared, "a == b", "whether `a == b`"))
not_equal = pair_op(
    Row("not_equal", np.not_equal, compared, "a != b", "whether `a != b`")
)
less = real_pair_op(Row("less", np.less, compared, "a < b", "whether `a < b`"))
less_equal = real_pair_op(
    Row("less_equal", np.less_equal, compared, "a <= b", "whether `a <= b`")
)
greater = real_pair_op(Row("greater", np.greater, compared, "a > b", "whether `a > b`"))
greater_equal = real_pair_op(
    Row("greater_equal", np.greater_equal, compared, "a >= b", "whether `a >= b`")
)
