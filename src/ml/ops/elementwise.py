"""Ops on one element, or on pairs of elements, at a time.

bfloat16 and float16 are computed in float32 and rounded once. Two operands broadcast as
in NumPy: aligned at the right, sizes equal or 1. Functions of one real tensor, not bool,
are computed in float64 and rounded through float32; functions without integer results
convert integers to float32.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .. import kernels
from ..checks import (
    KERNEL_DTYPES,
    check_float,
    check_kind,
    check_same_dtype,
    checked_pair,
    comparable,
    describe_operands,
    kernel_operand,
    rounded,
)
from ..dtype import checked_number, checked_scalar, complex64, float32
from ..errors import DTypeError, ShapeError, TensorError
from ..kernels import lib
from ..op import op
from ..tensor import Array, Tensor, allocate

_erf = np.vectorize(math.erf, otypes=[np.float64])


@op
def add(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Add element by element.

    out = a + b

    Args:
        a: A tensor of any dtype, or a number.
        b: A tensor of the same dtype, of a shape that broadcasts, or a number of that
            kind, which is rounded to float32 for a float tensor. At least one operand is
            a tensor.

    Returns:
        A tensor of the broadcast shape and that dtype; integers wrap around.

    Raises:
        DTypeError: The dtypes differ, or a number is of another kind.
        ShapeError: The shapes do not broadcast.
        TensorError: An integer does not fit into the dtype.
    """
    if _fits_kernel(a, b):
        return _run(lib.OP_ADD, a, b)
    return _broadcast("add", np.add, a, b)


@op
def sub(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Subtract element by element, `a - b`; as in `add`, but without dtype bool."""
    for x in (a, b):
        if isinstance(x, Tensor):
            check_kind("sub", x, "float", "int", "complex")
    return _broadcast("sub", np.subtract, a, b)


@op
def multiply(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Multiply element by element; arguments, result and errors as in `add`.

    out = a * b; (x + iy)(u + iv) = (xu - yv) + i(xv + yu), each product and sum in
    float32
    """
    if _fits_kernel(a, b):
        return _run(lib.OP_MULTIPLY, a, b)
    return _broadcast("multiply", np.multiply, a, b)


@op
def div(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Divide element by element; arguments and errors as in `add`.

    out = a / b; a division by 0 gives an infinity or NaN

    Returns:
        A tensor of the broadcast shape and that dtype, float32 for integers.
    """
    a, b = (
        x.to(float32) if isinstance(x, Tensor) and x._dtype.kind in ("int", "bool") else x
        for x in (a, b)
    )
    return _broadcast("div", np.divide, a, b)


@op
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply the up projection of a feed-forward by the SiLU of the gate.

    out = gate * sigmoid(gate) * up, computed in float32, rounded once

    Args:
        gate: A real floating-point tensor, [..., F] in the model.
        up: A tensor of the same shape and dtype.

    Returns:
        A tensor of that shape and dtype.

    Raises:
        DTypeError: The tensors are not floating point, or the dtypes differ.
        ShapeError: The shapes differ.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    if _fits_kernel(gate, up):
        return _run(lib.OP_SWIGLU, gate, up)
    left = kernel_operand("swiglu", gate)
    right = kernel_operand("swiglu", up)
    check_same_dtype("swiglu", gate, up)
    if gate._shape != up._shape:
        raise ShapeError(
            f"[swiglu] gate.shape must equal up.shape: {list(gate.shape)} != "
            f"{list(up.shape)}"
        )
    return _run(lib.OP_SWIGLU, left, right).to(gate._dtype)


@op
def silu(x: Tensor) -> Tensor:
    """Apply the SiLU, also called swish.

    out = x * sigmoid(x) = x / (1 + exp(-x)), computed in float32, rounded once

    Args:
        x: A real floating-point tensor.

    Returns:
        A tensor of its shape and dtype.

    Raises:
        DTypeError: The tensor is not floating point.

    Source: Elfwing, Uchibe, Doya, Sigmoid-Weighted Linear Units, 2017.
    """
    operand = kernel_operand("silu", x)
    return _run(lib.OP_SILU, operand, operand).to(x._dtype)


@op
def pow(  # noqa: A001 (the field's word)
    base: Tensor | float, exponent: Tensor | float
) -> Tensor:
    """Raise to a power; arguments and errors as in `add`, but tensors are floats.

    out = base ** exponent, computed in float64, rounded through float32

    Returns:
        A tensor of the broadcast shape and that dtype.
    """
    dtype, _ = checked_pair("pow", base, exponent)
    check_float("pow", *(x for x in (base, exponent) if isinstance(x, Tensor)))
    with np.errstate(all="ignore"):
        values = [
            x.numpy().astype(np.float64)
            if isinstance(x, Tensor)
            else checked_number("pow", x, float32)
            for x in (base, exponent)
        ]
        return rounded(np.power(*values), dtype)


@op
def outer(a: Tensor, b: Tensor) -> Tensor:
    """Multiply each element of one vector with each of another.

    out[i, j] = a[i] * b[j]

    Args:
        a: A vector [n] of any dtype.
        b: A vector [m] of the same dtype.

    Returns:
        A tensor [n, m] of that dtype.

    Raises:
        ShapeError: An argument is not a vector.
        DTypeError: The dtypes differ.
    """
    if a.ndim != 1 or b.ndim != 1:
        both = describe_operands(("a", a), ("b", b))
        raise ShapeError(
            f"[outer] a.ndim and b.ndim must equal 1: {a.ndim}, {b.ndim} ({both})"
        )
    check_same_dtype("outer", a, b)
    return multiply(a.reshape(-1 if a.size else 0, 1), b)


@op
def polar(absolute: Tensor, angle: Tensor) -> Tensor:
    """Make complex numbers from absolute values and angles.

    out = absolute * cos(angle) + i * absolute * sin(angle), computed in float64, rounded
    once

    Args:
        absolute: A float32 tensor.
        angle: A float32 tensor, in radians, of a shape that broadcasts.

    Returns:
        A complex64 tensor of the broadcast shape.

    Raises:
        DTypeError: A dtype is not float32.
        ShapeError: The shapes do not broadcast.
    """
    for x in (absolute, angle):
        if x.dtype is not float32:
            raise DTypeError(
                f"[polar] dtype must equal float32: {x.dtype} (shape {list(x.shape)})"
            )
    result = allocate(checked_pair("polar", absolute, angle)[1], complex64)
    parts = result.numpy()
    with np.errstate(all="ignore"):
        length, radians = (x.numpy().astype(np.float64) for x in (absolute, angle))
        parts.real = length * np.cos(radians)
        parts.imag = length * np.sin(radians)
    return result


@op
def neg(x: Tensor) -> Tensor:
    """Negate, `-x`, a tensor of any dtype but bool; integers wrap around."""
    check_kind("neg", x, "float", "int", "complex")
    result = allocate(x._shape, x._dtype)
    np.negative(x.numpy(), out=result.numpy())
    return result


@op
def abs(x: Tensor) -> Tensor:  # noqa: A001 (the field's word)
    """Take absolute values, float32 for complex64; the least integer stays unchanged."""
    check_kind("abs", x, "float", "int", "complex")
    result = allocate(x._shape, float32 if x._dtype is complex64 else x._dtype)
    with np.errstate(all="ignore"):
        np.absolute(x.numpy(), out=result.numpy())
    return result


@op
def clip(
    x: Tensor,
    min: float | None = None,  # noqa: A002 (the field's word)
    max: float | None = None,  # noqa: A002
) -> Tensor:
    """Limit the elements of a real tensor to a range.

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
    """Replace negative elements by zero, `max(x, 0)`.

    The tensor is real and not bool. NaN stays NaN.
    """
    return clip(x, min=0)


@op
def exp(x: Tensor) -> Tensor:
    """Take the exponential, e ** x."""
    return _apply("exp", np.exp, x)


@op
def log(x: Tensor) -> Tensor:
    """Take the natural logarithm; -inf at 0, NaN below."""
    return _apply("log", np.log, x)


@op
def sqrt(x: Tensor) -> Tensor:
    """Take the square root; NaN below 0."""
    return _apply("sqrt", np.sqrt, x)


@op
def rsqrt(x: Tensor) -> Tensor:
    """Take the reciprocal square root, 1 / sqrt(x), of floats.

    Infinity at 0, NaN below 0.
    """
    check_float("rsqrt", x)
    return _apply("rsqrt", lambda v: 1.0 / np.sqrt(v), x)


@op
def tanh(x: Tensor) -> Tensor:
    """Take the hyperbolic tangent."""
    return _apply("tanh", np.tanh, x)


@op
def sigmoid(x: Tensor) -> Tensor:
    """Take the logistic function, 1 / (1 + exp(-x))."""
    return _apply("sigmoid", lambda v: 1.0 / (1.0 + np.exp(-v)), x)


@op
def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Apply the Gaussian error linear unit.

    "none": out = x * (1 + erf(x / sqrt(2))) / 2
    "tanh": out = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2

    Source: Hendrycks, Gimpel, Gaussian Error Linear Units, 2016.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise TensorError(
            f"[gelu] approximate must be 'none' or 'tanh': {approximate!r:.80}"
        )
    if approximate == "none":
        return _apply("gelu", lambda v: v * (1.0 + _erf(v * math.sqrt(0.5))) / 2.0, x)
    inner = math.sqrt(2.0 / math.pi)
    return _apply(
        "gelu", lambda v: v * (1.0 + np.tanh(inner * (v + 0.044715 * v**3))) / 2.0, x
    )


def _apply(op: str, function: Callable[[Array], Any], x: Tensor) -> Tensor:
    if x._dtype.kind == "int":
        x = x.to(float32)
    check_float(op, x)
    with np.errstate(all="ignore"):
        return rounded(function(x.numpy().astype(np.float64)), x._dtype)


def _fits_kernel(a: Any, b: Any) -> bool:
    """Return whether the kernel can read two operands directly.

    They are contiguous tensors of equal shape and of one kernel dtype.
    """
    return (
        type(a) is type(b) is Tensor
        and a._dtype is b._dtype
        and a._dtype in KERNEL_DTYPES
        and a._shape == b._shape
        and (a._pointer is not None or a.contiguous() is a)
        and (b._pointer is not None or b.contiguous() is b)
    )


def _run(code: int, a: Any, b: Any) -> Tensor:
    """Run the kernel of an operation on contiguous operands of equal shape and dtype."""
    result = allocate(a._shape, a._dtype)
    lib.elementwise(
        result._pointer,
        a._pointer,
        b._pointer,
        a._size,
        code,
        a._dtype.code,
        kernels.threads,
    )
    return result


def _broadcast(op: str, function: Callable[..., Any], a: Any, b: Any) -> Tensor:
    """Run a NumPy function on operands that broadcast, one of which may be a number.

    Real floating-point dtypes are computed in float32 and rounded once.
    """
    dtype, shape = checked_pair(op, a, b)
    if function is np.multiply and dtype is complex64:
        function = _complex_multiply
    computed = float32 if dtype.is_float else dtype
    left, right = (
        x.to(computed).numpy()
        if isinstance(x, Tensor)
        else checked_scalar(op, x, computed)
        for x in (a, b)
    )
    result = allocate(shape, computed)
    with np.errstate(all="ignore"):
        function(left, right, out=result.numpy())
    return result.to(dtype)


def _complex_multiply(a: Array, b: Array, out: Array) -> None:
    # NumPy's own complex product uses fused multiply-add on some machines and not on
    # others.
    out.real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
