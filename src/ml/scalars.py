"""Python numbers on their way into a tensor."""

import operator
from typing import Any

import numpy as np

from .dtype import DType
from .errors import DTypeError, TensorError


def checked_scalar(op: str, value: Any, dtype: DType) -> Any:
    """Round a number to `dtype`.

    Args:
        op: for the text of the error.
        value: a Python or NumPy number.
        dtype: where it goes.

    Returns:
        A NumPy scalar of that dtype. Floats beyond the range become infinite.

    Raises:
        DTypeError: not a number of that kind (a complex into a float, a float into an int).
        TensorError: an integer beyond the range.
    """
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        if dtype.kind == "int":
            number: Any = operator.index(value)
            limits = np.iinfo(dtype.numpy_dtype)
            if not limits.min <= number <= limits.max:
                raise TensorError(
                    f"[{op}] value must be in [{limits.min}, {limits.max}] for {dtype}: {number}"
                )
        else:
            number = float(value) if dtype.is_float else complex(value)
    except (TypeError, OverflowError):
        raise DTypeError(
            f"[{op}] value must be a number of the kind of {dtype}: {type(value).__name__}"
        ) from None
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(number).astype(dtype.numpy_dtype)[()]
