"""Comparison ops. Operands broadcast as in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..checks import checked_pair, comparable
from ..dtype import DType, bool_, checked_scalar, complex64
from ..errors import DTypeError
from ..op import op
from ..tensor import Tensor


@op
def equal(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Compute `a == b` element by element. See `add` for the operands.

    A number may be of any kind. If the tensor is floating point, the number is rounded to
    the tensor's dtype.

    Returns:
        A bool tensor of the broadcast shape. NaN is not equal to any value.
    """
    return _compare("equal", np.equal, a, b)


@op
def not_equal(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Compute `a != b` element by element. See `equal` for the operands."""
    return _compare("not_equal", np.not_equal, a, b)


@op
def less(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Compute `a < b` element by element. See `equal`; operands must not be complex."""
    return _compare("less", np.less, a, b)


@op
def less_equal(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Compute `a <= b` element by element. See `equal`; operands must not be complex."""
    return _compare("less_equal", np.less_equal, a, b)


@op
def greater(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Compute `a > b` element by element. See `equal`; operands must not be complex."""
    return _compare("greater", np.greater, a, b)


@op
def greater_equal(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Compute `a >= b` element by element. See `equal`; operands must not be complex."""
    return _compare("greater_equal", np.greater_equal, a, b)


def _compare(op: str, function: Callable[..., Any], a: Any, b: Any) -> Tensor:
    dtype, _ = checked_pair(op, a, b)
    values = [_operand(op, x, dtype) for x in (a, b)]
    is_complex = any(np.iscomplexobj(value) for value in values)
    if is_complex and function not in (np.equal, np.not_equal):
        raise DTypeError(f"[{op}] operands must be real: complex ({dtype})")
    with np.errstate(all="ignore"):
        return Tensor.from_numpy(np.asarray(function(*values)))


def _operand(op: str, x: Any, dtype: DType) -> Any:
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
