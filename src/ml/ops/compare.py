"""Comparison and selection ops. Operands broadcast as in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..checks import checked_flag, checked_pair, comparable
from ..dtype import DType, bool_, checked_number, checked_scalar, complex64, float32
from ..errors import DTypeError
from ..layout import broadcast_shapes
from ..op import op
from ..tensor import Array, Tensor, allocate
from .creation import tensor


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


@op
def allclose(
    a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether all elements of two tensors are equal within a tolerance.

    |a - b| <= atol + rtol * |b|, computed in float64

    The tensors must have the same dtype, and their shapes broadcast. An infinity is close
    only to itself. NaN values are close to each other only if `equal_nan` is set.
    """
    checked_pair("allclose", a, b)
    wide = np.complex128 if a._dtype.kind == "complex" else np.float64
    rtol, atol = (checked_number("allclose", bound, float32) for bound in (rtol, atol))
    is_nan_close = checked_flag("allclose", "equal_nan", equal_nan)
    with np.errstate(all="ignore"):
        left = a.numpy().astype(wide)
        right = b.numpy().astype(wide)
        return bool(np.allclose(left, right, rtol, atol, is_nan_close))


@op
def where(condition: Tensor, a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Select elements from one of two operands, depending on a condition.

    out = a if condition else b, element by element

    The condition is a bool tensor. `a` and `b` are tensors with the same dtype, or
    numbers. All three operands broadcast. If `a` and `b` are both numbers, the result has
    the dtype of `ml.tensor([a, b])`.
    """
    if condition._dtype is not bool_:
        actual = f"{condition.dtype} (shape {list(condition.shape)})"
        raise DTypeError(f"[where] condition.dtype must equal bool: {actual}")
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        dtype, shape = checked_pair("where", a, b)
    else:
        dtype = tensor([a, b]).dtype
        shape = ()
    result = allocate(broadcast_shapes("where", condition._shape, shape), dtype)
    result.bits()[...] = np.where(
        condition.numpy(), *(_bits_of(x, dtype) for x in (a, b))
    )
    return result


def _bits_of(x: Any, dtype: DType) -> Array:
    if isinstance(x, Tensor):
        return x.bits()
    return np.asarray(checked_scalar("where", x, dtype)).view(dtype.bits_dtype)


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
