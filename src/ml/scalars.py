"""Python numbers on their way into a tensor."""

import operator
from typing import Any

import numpy as np

from .dtype import DType, float32
from .errors import DTypeError, TensorError

# Below this, rounding to float32 neither overflows nor warns.
_SAFE = 1e38


def checked_number(op: str, value: Any, dtype: DType) -> Any:
    """Check that a number is of the kind of `dtype`, without rounding it.

    Args:
        op: for the text of the error.
        value: a Python or NumPy number.
        dtype: where it goes.

    Returns:
        A Python int, float or complex.

    Raises:
        DTypeError: not a number of that kind (a complex into a float, a float into an int).
        TensorError: an integer beyond the range.
    """
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        if dtype.is_float:
            return float(value)
        if dtype.kind == "complex":
            return complex(value)
        number = operator.index(value)
    except (TypeError, OverflowError):
        raise DTypeError(
            f"[{op}] value must be a number of the kind of {dtype}: {type(value).__name__}"
        ) from None
    limits = np.iinfo(dtype.numpy_dtype)
    if not limits.min <= number <= limits.max:
        raise TensorError(
            f"[{op}] value must be in [{limits.min}, {limits.max}] for {dtype}: {number}"
        )
    return number


def checked_scalar(op: str, value: Any, dtype: DType) -> Any:
    """Check a number as `checked_number` does, and round it to a NumPy scalar of `dtype`.

    Floats beyond the range become infinite.
    """
    number = checked_number(op, value, dtype)
    if dtype is float32 and abs(number) < _SAFE:
        return np.float32(number)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(number).astype(dtype.numpy_dtype)[()]
