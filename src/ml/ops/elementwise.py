"""Ops on one element, or on pairs of elements, at a time.

bfloat16 and float16 are computed in float32 and rounded once. Two operands broadcast as in NumPy:
aligned at the right, sizes equal or 1.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import native
from ..dtype import complex64, float32
from ..errors import DTypeError, ShapeError
from ..layout import broadcast_shapes
from ..scalars import checked_number, checked_scalar
from ..tensor import Array, Tensor
from .support import (
    KERNEL_DTYPES,
    check_float,
    check_same_dtype,
    empty_float32,
    float32_array,
    kernel_dtype,
    kernel_operand,
)

Kernel2 = Callable[[Tensor, Tensor, Tensor], None]


def add(a: Tensor, b: Tensor) -> Tensor:
    """Add element by element.

    out = a + b

    Args:
        a: a tensor of any dtype.
        b: a tensor of the same dtype, of a shape that broadcasts.

    Returns:
        A tensor of the broadcast shape and that dtype; integers wrap around.

    Raises:
        DTypeError: the dtypes differ.
        ShapeError: the shapes do not broadcast.
    """
    if _kernel_takes(a, b):
        return _run(native.add, a, b)
    return _broadcast("add", np.add, a, b)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Multiply element by element.

    out = a * b;  (x + iy)(u + iv) = (xu - yv) + i(xv + yu), each product and sum in float32

    Args:
        a: a tensor of any dtype.
        b: a tensor of the same dtype, of a shape that broadcasts.

    Returns:
        A tensor of the broadcast shape and that dtype; integers wrap around.

    Raises:
        DTypeError: the dtypes differ.
        ShapeError: the shapes do not broadcast.
    """
    if _kernel_takes(a, b):
        return _run(native.multiply, a, b)
    return _broadcast("multiply", _complex_multiply if a.dtype is complex64 else np.multiply, a, b)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Gate the up projection of a feed-forward with the SiLU of the other one.

    out = gate * sigmoid(gate) * up, computed in float32, rounded once

    Args:
        gate: a real floating-point tensor, [..., F] in the model.
        up: a tensor of the same shape and dtype.

    Returns:
        A tensor of that shape and dtype.

    Raises:
        DTypeError: not floating point, or the dtypes differ.
        ShapeError: the shapes differ.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    if _kernel_takes(gate, up):
        return _run(native.swiglu, gate, up)
    check_float("swiglu", gate, up)
    check_same_dtype("swiglu", gate, up)
    if gate.shape != up.shape:
        raise ShapeError(
            f"[swiglu] gate.shape must equal up.shape: {list(gate.shape)} != {list(up.shape)}"
        )
    return _run(native.swiglu, kernel_operand(gate), kernel_operand(up)).to(gate.dtype)


def silu(x: Tensor) -> Tensor:
    """Apply the SiLU, also called swish.

    out = x * sigmoid(x) = x / (1 + exp(-x))

    Args:
        x: a real floating-point tensor.

    Returns:
        A tensor of its shape and dtype.

    Raises:
        DTypeError: not floating point.

    Source: Elfwing, Uchibe, Doya, Sigmoid-Weighted Linear Units, 2017.
    """
    check_float("silu", x)
    result = Tensor._empty(x.shape, kernel_dtype(x.dtype))
    native.silu(kernel_operand(x), result)
    return result.to(x.dtype)


def add_scalar(x: Tensor, value: complex) -> Tensor:
    """Add one number to every element.

    out = x + value

    Args:
        x: a tensor of any dtype.
        value: a number of the kind of the dtype; next to a float it is rounded to float32.

    Returns:
        A tensor of the shape and dtype of `x`; integers wrap around.

    Raises:
        DTypeError: a value of another kind.
        TensorError: an integer that the dtype cannot hold.
    """
    return _with_scalar("add_scalar", np.add, x, value)


def div_scalar(x: Tensor, value: complex) -> Tensor:
    """Divide every element by one number.

    out = x / value; a division by 0 gives an infinity or NaN

    Args:
        x: a floating-point or complex tensor.
        value: a number of the kind of the dtype; next to a float it is rounded to float32.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        DTypeError: an integer tensor, or a value of another kind.
    """
    if x.dtype.kind == "int":
        raise DTypeError(
            f"[div_scalar] dtype must be floating point or complex: {x.dtype} "
            f"(shape {list(x.shape)})"
        )
    return _with_scalar("div_scalar", np.divide, x, value)


def pow(base: Tensor | float, exponent: Tensor | float) -> Tensor:  # noqa: A001 (the field's word)
    """Raise to a power.

    out = base ** exponent, computed in float64, rounded by way of float32

    Args:
        base: a real floating-point tensor or a number.
        exponent: the same; where both are tensors, they have one dtype and broadcast.

    Returns:
        A tensor of the broadcast shape and that dtype.

    Raises:
        DTypeError: no tensor, not floating point, or dtypes that differ.
        ShapeError: the shapes do not broadcast.
    """
    tensors = [x for x in (base, exponent) if isinstance(x, Tensor)]
    if not tensors:
        raise DTypeError("[pow] number of tensors must be >= 1: 0")
    check_float("pow", *tensors)
    if isinstance(base, Tensor) and isinstance(exponent, Tensor):
        check_same_dtype("pow", base, exponent)
        broadcast_shapes("pow", base.shape, exponent.shape)
    with np.errstate(all="ignore"):
        return _rounded(np.power(_float64("pow", base), _float64("pow", exponent)), tensors[0])


def rsqrt(x: Tensor) -> Tensor:
    """Take the reciprocal of the square root.

    out = 1 / sqrt(x), computed in float64, rounded by way of float32

    Args:
        x: a real floating-point tensor.

    Returns:
        A tensor of its shape and dtype; infinity at 0, NaN below.

    Raises:
        DTypeError: not floating point.
    """
    check_float("rsqrt", x)
    with np.errstate(all="ignore"):
        return _rounded(1.0 / np.sqrt(_float64("rsqrt", x)), x)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Multiply each element of one vector with each of another.

    out[i, j] = a[i] * b[j]

    Args:
        a: a vector [n] of any dtype.
        b: a vector [m] of the same dtype.

    Returns:
        A tensor [n, m] of that dtype.

    Raises:
        ShapeError: not vectors.
        DTypeError: the dtypes differ.
    """
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(
            f"[outer] a.ndim and b.ndim must equal 1: {a.ndim}, {b.ndim} "
            f"(a {list(a.shape)}, b {list(b.shape)})"
        )
    check_same_dtype("outer", a, b)
    return multiply(a.reshape(-1 if a.size else 0, 1), b)


def polar(absolute: Tensor, angle: Tensor) -> Tensor:
    """Make complex numbers from lengths and angles.

    out = absolute * cos(angle) + i * absolute * sin(angle), computed in float64, rounded once

    Args:
        absolute: a float32 tensor.
        angle: a float32 tensor, in radians, of a shape that broadcasts.

    Returns:
        A complex64 tensor of the broadcast shape.

    Raises:
        DTypeError: not float32.
        ShapeError: the shapes do not broadcast.
    """
    for x in (absolute, angle):
        if x.dtype is not float32:
            raise DTypeError(f"[polar] dtype must equal float32: {x.dtype} (shape {list(x.shape)})")
    shape = broadcast_shapes("polar", absolute.shape, angle.shape)
    result = Tensor._empty(shape, complex64)
    length, radians = _float64("polar", absolute), _float64("polar", angle)
    parts = result.numpy()
    with np.errstate(all="ignore"):
        parts.real = length * np.cos(radians)
        parts.imag = length * np.sin(radians)
    return result


def _kernel_takes(a: Tensor, b: Tensor) -> bool:
    return (
        a._dtype is b._dtype
        and a._dtype in KERNEL_DTYPES
        and a._shape == b._shape
        and (a._contiguous or a.is_contiguous)
        and (b._contiguous or b.is_contiguous)
    )


def _run(kernel: Kernel2, a: Tensor, b: Tensor) -> Tensor:
    """Run a kernel on contiguous operands of equal shape and dtype."""
    result = Tensor._empty(a._shape, a._dtype)
    kernel(a, b, result)
    return result


def _broadcast(op: str, function: Callable[..., Any], a: Tensor, b: Tensor) -> Tensor:
    """Run a NumPy function on operands that broadcast, through float32 where there is less."""
    check_same_dtype(op, a, b)
    shape = broadcast_shapes(op, a.shape, b.shape)
    with np.errstate(all="ignore"):
        if a.dtype.is_float:
            result = empty_float32(shape)
            function(float32_array(a), float32_array(b), out=result.numpy())
            return result.to(a.dtype)
        result = Tensor._empty(shape, a.dtype)
        function(a.numpy(), b.numpy(), out=result.numpy())
        return result


def _complex_multiply(a: Array, b: Array, out: Array) -> None:
    # NumPy's own complex product uses fused multiply-add on some machines and not on others.
    out.real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real


def _with_scalar(op: str, function: Callable[..., Any], x: Tensor, value: complex) -> Tensor:
    scalar = checked_scalar(op, value, float32 if x.dtype.is_float else x.dtype)
    with np.errstate(all="ignore"):
        if x.dtype.is_float:
            result = empty_float32(x.shape)
            function(float32_array(x), scalar, out=result.numpy())
            return result.to(x.dtype)
        result = Tensor._empty(x.shape, x.dtype)
        function(x.numpy(), scalar, out=result.numpy())
        return result


def _float64(op: str, x: Tensor | float) -> Any:
    if isinstance(x, Tensor):
        return x.numpy().astype(np.float64)
    return checked_number(op, x, float32)


def _rounded(values: Any, like: Tensor) -> Tensor:
    """Round float64 values to float32, and from there to the dtype of `like`."""
    result = empty_float32(np.shape(values))
    result.numpy()[...] = values
    return result.to(like.dtype)
