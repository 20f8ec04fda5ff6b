"""Compare a result with the expected one, and describe the first difference."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ml

_LONGEST_VALUE = 60


def plain_value(value: Any) -> Any:
    """Return a tensor as a NumPy array, and a NumPy scalar as a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, ml.Tensor):
        return value
    return value.to(ml.float32).numpy() if value.dtype is ml.bfloat16 else value.numpy()


def first_difference(value: Any, expected: Any, bound: float) -> str | None:
    """Return a description of the first difference, or None if the values agree.

    Args:
        value: An array, a number, a text, bytes, or a list, tuple or mapping of these.
        expected: The expected value.
        bound: The largest accepted difference of two floating-point elements, in units of
            the largest finite element of the expected array, or of an expected number if
            it is above 1. 0 requires equal bits.
    """
    value = plain_value(value)
    expected = plain_value(expected)
    if isinstance(expected, str) and isinstance(value, str):
        return _text_difference(value, expected)
    if isinstance(expected, np.ndarray):
        return _array_difference(value, expected, bound)
    if isinstance(expected, Mapping):
        return _mapping_difference(value, expected, bound)
    if isinstance(expected, list | tuple):
        return _sequence_difference(value, expected, bound)
    if isinstance(expected, float):
        if isinstance(value, int | float | np.number):
            distance = abs(value - expected)
            if value == expected or distance <= bound * max(1.0, abs(expected)):
                return None
        return f"{shown(value)}, expected {shown(expected)}"
    if type(value) is not type(expected) or value != expected:
        return f"{shown(value)}, expected {shown(expected)}"
    return None


def _array_difference(value: Any, expected: npt.NDArray[Any], bound: float) -> str | None:
    try:
        array = np.asarray(value)
    except ValueError:
        return f"{shown(value)}, expected an array of shape {list(expected.shape)}"
    if array.dtype.kind not in "biufcV" or array.dtype == object:
        kind = type(value).__name__
        return f"{kind}, expected an array of shape {list(expected.shape)}"
    if array.shape != expected.shape:
        return f"shape {list(array.shape)}, expected shape {list(expected.shape)}"
    if expected.dtype.kind in "biu" and array.dtype.kind not in "biu":
        return f"an array of {array.dtype}, expected {expected.dtype}"
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    if expected.dtype.kind in "biu":
        differs = array != expected
    elif bound == 0.0:
        with np.errstate(over="ignore"):
            narrow = array.astype(expected.dtype)
        differs = narrow != expected
        differs |= np.signbit(narrow.real) != np.signbit(expected.real)
        differs &= ~(np.isnan(narrow) & np.isnan(expected))
    else:
        finite = expected[np.isfinite(expected)]
        scale = float(np.abs(finite).max()) if finite.size else 1.0
        with np.errstate(invalid="ignore"):
            distance = np.abs(array.astype(wide) - expected.astype(wide))
            differs = ~(distance <= bound * scale) & (array != expected)
        differs &= ~(np.isnan(array) & np.isnan(expected))
    if not differs.any():
        return None
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    count = int(differs.sum())
    others = f" ({count} of {differs.size} elements differ)" if differs.size > 1 else ""
    place = f"index {list(index)}: " if index else ""
    return f"{place}{shown(array[index])}, expected {shown(expected[index])}{others}"


def _text_difference(value: str, expected: str) -> str | None:
    if value == expected:
        return None
    pairs = zip(value, expected, strict=False)
    shorter = min(len(value), len(expected))
    at = next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)
    parts = [shown(text[at:]) if text[at:] else "the end" for text in (value, expected)]
    place = f"character {at}: " if at else ""
    return f"{place}{parts[0]}, expected {parts[1]}"


def _mapping_difference(
    value: Any, expected: Mapping[Any, Any], bound: float
) -> str | None:
    if not isinstance(value, Mapping):
        return f"{shown(value)}, expected a dict"
    for key in expected:
        if key not in value:
            return f"key {key!r}: missing, expected {shown(expected[key])}"
        difference = first_difference(value[key], expected[key], bound)
        if difference is not None:
            return f"key {key!r}: {difference}"
    extra = [key for key in value if key not in expected]
    return f"key {extra[0]!r}: expected no such key" if extra else None


def _sequence_difference(
    value: Any, expected: list[Any] | tuple[Any, ...], bound: float
) -> str | None:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return f"{shown(value)}, expected a {type(expected).__name__}"
    for i, (one, other) in enumerate(zip(value, expected, strict=False)):
        difference = first_difference(one, other, bound)
        if difference is not None:
            return f"index {i}: {difference}"
    if len(value) < len(expected):
        return f"index {len(value)}: missing, expected {shown(expected[len(value)])}"
    if len(value) > len(expected):
        return f"index {len(expected)}: {shown(value[len(expected)])}, expected the end"
    return None


def shown(value: Any) -> str:
    """Return a value as a short text."""
    if isinstance(value, np.float32):
        return str(value).removesuffix(".0")  # all digits, to tell neighbours apart
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, np.ndarray | ml.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
