"""Functions of one tensor, element by element.

They take real tensors, not bool. Those that have no integer results turn integers into float32.
They are computed in float64 and rounded by way of float32.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..checks import check_float, check_kind, comparable, rounded
from ..dtype import checked_scalar, complex64, float32
from ..errors import TensorError
from ..op import op
from ..tensor import Array, Tensor

_erf = np.vectorize(math.erf, otypes=[np.float64])


@op
def neg(x: Tensor) -> Tensor:
    """Negate, `-x`; a tensor of any dtype but bool. Integers wrap around."""
    check_kind("neg", x, "float", "int", "complex")
    result = Tensor._empty(x._shape, x._dtype)
    np.negative(x.numpy(), out=result.numpy())
    return result


@op
def abs(x: Tensor) -> Tensor:  # noqa: A001 (the field's word)
    """Take absolute values, float32 ones of complex64; the least integer stays as it is."""
    check_kind("abs", x, "float", "int", "complex")
    result = Tensor._empty(x._shape, float32 if x._dtype is complex64 else x._dtype)
    with np.errstate(all="ignore"):
        np.absolute(x.numpy(), out=result.numpy())
    return result


@op
def clip(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002
    """Move the elements of a real tensor into a range.

    out = minimum(maximum(x, min), max); NaN stays NaN

    The bounds are numbers of the kind of the dtype; one may be left out.
    """
    check_kind("clip", x, "float", "int")
    if min is None and max is None:
        raise TensorError("[clip] min or max must be given: None, None")
    values = comparable(x)
    for bound, function in ((min, np.maximum), (max, np.minimum)):
        if bound is not None:
            limit = checked_scalar("clip", bound, x._dtype)
            values = np.asarray(function(values, limit.astype(values.dtype)))
    return Tensor.from_numpy(np.array(values)).to(x._dtype)


@op
def relu(x: Tensor) -> Tensor:
    """Set what is negative to zero, `max(x, 0)`; a real tensor, not bool. NaN stays NaN."""
    return clip(x, min=0)


@op
def exp(x: Tensor) -> Tensor:
    """Take the exponential, e ** x."""
    return _function("exp", np.exp, x)


@op
def log(x: Tensor) -> Tensor:
    """Take the natural logarithm; -inf at 0, NaN below."""
    return _function("log", np.log, x)


@op
def sqrt(x: Tensor) -> Tensor:
    """Take the square root; NaN below 0."""
    return _function("sqrt", np.sqrt, x)


@op
def rsqrt(x: Tensor) -> Tensor:
    """Take the reciprocal of the square root, 1 / sqrt(x), of floats; infinity at 0, NaN below."""
    check_float("rsqrt", x)
    return _function("rsqrt", lambda v: 1.0 / np.sqrt(v), x)


@op
def tanh(x: Tensor) -> Tensor:
    """Take the hyperbolic tangent."""
    return _function("tanh", np.tanh, x)


@op
def sigmoid(x: Tensor) -> Tensor:
    """Take the logistic function, 1 / (1 + exp(-x))."""
    return _function("sigmoid", lambda v: 1.0 / (1.0 + np.exp(-v)), x)


@op
def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Apply the Gaussian error linear unit.

    "none": out = x * (1 + erf(x / sqrt(2))) / 2
    "tanh": out = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2

    Source: Hendrycks, Gimpel, Gaussian Error Linear Units, 2016.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise TensorError(f"[gelu] approximate must be 'none' or 'tanh': {approximate!r:.80}")
    if approximate == "none":
        return _function("gelu", lambda v: v * (1.0 + _erf(v * math.sqrt(0.5))) / 2.0, x)
    inner = math.sqrt(2.0 / math.pi)
    return _function("gelu", lambda v: v * (1.0 + np.tanh(inner * (v + 0.044715 * v**3))) / 2.0, x)


def _function(op: str, function: Callable[[Array], Any], x: Tensor) -> Tensor:
    if x._dtype.kind == "int":
        x = x.to(float32)
    check_float(op, x)
    with np.errstate(all="ignore"):
        return rounded(function(x.numpy().astype(np.float64)), x._dtype)
