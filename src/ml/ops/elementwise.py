"""Element-wise ops on one or two operands.

Ops on bfloat16 and float16 are computed in float32 and rounded once. Two operands
broadcast as in NumPy: their shapes are aligned at the last dimension, and sizes must be
equal or 1. `numpy_ops.py` contains the ops that only apply a NumPy function.
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
from .numpy_ops import in_float64

_erf = np.vectorize(math.erf, otypes=[np.float64])


@op
def add(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Add element by element.

    out = a + b

    Args:
        a: A tensor of any dtype, or a number.
        b: A tensor with the same dtype and a shape that broadcasts, or a number. At least
            one operand must be a tensor. A number must be of the kind of the tensor's
            dtype, and is rounded to float32 if the tensor is floating point.

    Returns:
        A tensor with the broadcast shape and the same dtype. Integers wrap around on
        overflow.

    Raises:
        DTypeError: If the dtypes differ, or if a number is of another kind.
        ShapeError: If the shapes do not broadcast.
        TensorError: If an integer does not fit into the dtype.
    """
    if _fits_kernel(a, b):
        return _run(lib.OP_ADD, a, b)
    return _broadcast("add", np.add, a, b)


@op
def sub(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Compute `a - b` element by element. See `add`; bool tensors are not supported."""
    for x in (a, b):
        if isinstance(x, Tensor):
            check_kind("sub", x, "float", "int", "complex")
    return _broadcast("sub", np.subtract, a, b)


@op
def multiply(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Multiply element by element. See `add` for arguments, result and exceptions.

    out = a * b; (x + iy)(u + iv) = (xu - yv) + i(xv + yu), each product and sum in
    float32
    """
    if _fits_kernel(a, b):
        return _run(lib.OP_MULTIPLY, a, b)
    return _broadcast("multiply", np.multiply, a, b)


@op
def div(a: Tensor | complex, b: Tensor | complex) -> Tensor:
    """Divide element by element. See `add` for arguments and exceptions.

    out = a / b; division by 0 returns an infinity or NaN

    Returns:
        A tensor with the broadcast shape and the same dtype, or float32 for integers.
    """
    a, b = (
        x.to(float32) if isinstance(x, Tensor) and x._dtype.kind in ("int", "bool") else x
        for x in (a, b)
    )
    return _broadcast("div", np.divide, a, b)


@op
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Apply SwiGLU: multiply the up projection by the SiLU of the gate projection.

    out = gate * sigmoid(gate) * up, computed in float32, rounded once

    Args:
        gate: A real floating-point tensor, [..., F] in the model.
        up: A tensor with the same shape and dtype.

    Returns:
        A tensor with this shape and dtype.

    Raises:
        DTypeError: If the tensors are not floating point, or if the dtypes differ.
        ShapeError: If the shapes differ.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    if _fits_kernel(gate, up):
        return _run(lib.OP_SWIGLU, gate, up)
    return _gated("swiglu", lib.OP_SWIGLU, gate, up)


def _gated(op: str, kind: int, gate: Tensor, up: Tensor) -> Tensor:
    """Check and convert a gate and an up projection, and run an op on them."""
    left = kernel_operand(op, gate)
    right = kernel_operand(op, up)
    check_same_dtype(op, gate, up)
    if gate._shape != up._shape:
        raise ShapeError(
            f"[{op}] gate.shape must equal up.shape: {list(gate.shape)} != "
            f"{list(up.shape)}"
        )
    return _run(kind, left, right).to(gate._dtype)


@op
def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """Apply GeGLU: multiply the up projection by the GELU of the gate projection.

    out = gelu(gate) * up, computed in float32, rounded once. GELU is approximated by
    tanh: gelu(x) = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2

    Args:
        gate: A real floating-point tensor, [..., F] in the model.
        up: A tensor with the same shape and dtype.

    Returns:
        A tensor with this shape and dtype.

    Raises:
        DTypeError: If the tensors are not floating point, or if the dtypes differ.
        ShapeError: If the shapes differ.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    if _fits_kernel(gate, up):
        return _run(lib.OP_GEGLU, gate, up)
    return _gated("geglu", lib.OP_GEGLU, gate, up)


@op
def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Apply SwiGLU with limits: both projections are clamped, and `up` is increased by 1.

    out = (u + 1) * g * sigmoid(1.702 * g), g = min(gate, 7), u = min(max(up, -7), 7),
    computed in float32, rounded once

    Args:
        gate: A real floating-point tensor, [..., F] in the model.
        up: A tensor with the same shape and dtype.

    Returns:
        A tensor with this shape and dtype.

    Raises:
        DTypeError: If the tensors are not floating point, or if the dtypes differ.
        ShapeError: If the shapes differ.

    Source: OpenAI, gpt-oss-120b and gpt-oss-20b Model Card, 2025; transformers,
    models/gpt_oss/modeling_gpt_oss.py.
    """
    if _fits_kernel(gate, up):
        return _run(lib.OP_CLAMPED_SWIGLU, gate, up)
    return _gated("clamped_swiglu", lib.OP_CLAMPED_SWIGLU, gate, up)


@op
def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Limit values softly to the range from -cap to cap.

    out = cap * tanh(x / cap), computed in float32, rounded once

    Args:
        x: A real floating-point tensor.
        cap: The limit, above 0.

    Returns:
        A tensor with the shape and dtype of `x`.

    Raises:
        DTypeError: If the tensor is not floating point.
        TensorError: If `cap` is not a positive number.

    Source: Gemma Team, Gemma 2, 2024.
    """
    operand = kernel_operand("soft_cap", x)
    if not (type(cap) in (int, float) and 0 < cap < math.inf):
        raise TensorError(f"[soft_cap] cap must be a positive number: {ascii(cap)[:80]}")
    result = allocate(operand._shape, operand._dtype)
    if result._size:
        lib.soft_cap(
            result._pointer,
            operand._pointer,
            operand._size,
            cap,
            operand._dtype.code,
            kernels.threads,
        )
    return result if result._dtype is x._dtype else result.to(x._dtype)


@op
def silu(x: Tensor) -> Tensor:
    """Apply the SiLU activation function, also called swish.

    out = x * sigmoid(x) = x / (1 + exp(-x)), computed in float32, rounded once

    Args:
        x: A real floating-point tensor.

    Returns:
        A tensor with the shape and dtype of `x`.

    Raises:
        DTypeError: If the tensor is not floating point.

    Source: Elfwing, Uchibe, Doya, Sigmoid-Weighted Linear Units, 2017.
    """
    operand = kernel_operand("silu", x)
    return _run(lib.OP_SILU, operand, operand).to(x._dtype)


@op
def pow(  # noqa: A001 (the field's word)
    base: Tensor | float, exponent: Tensor | float
) -> Tensor:
    """Raise `base` to the power `exponent`, element by element.

    out = base ** exponent, computed in float64, rounded through float32

    See `add` for arguments and exceptions. Tensors must be floating point.

    Returns:
        A tensor with the broadcast shape and the same dtype.
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
def bitwise_and(a: Tensor | int, b: Tensor | int) -> Tensor:
    """Return `a & b`: of bools, whether both are True; of integers, the common bits.

    Args:
        a: A bool or integer tensor, or a number of this kind.
        b: A tensor with the same dtype and a shape that broadcasts, or a number. At least
            one operand must be a tensor.

    Returns:
        A tensor with the broadcast shape and the same dtype.

    Raises:
        DTypeError: If the dtypes differ, or are not bool or integer.
        ShapeError: If the shapes do not broadcast.
    """
    return _bitwise("bitwise_and", np.bitwise_and, a, b)


@op
def bitwise_or(a: Tensor | int, b: Tensor | int) -> Tensor:
    """Return `a | b`: of bools, whether one or both are True. See `bitwise_and`."""
    return _bitwise("bitwise_or", np.bitwise_or, a, b)


@op
def bitwise_xor(a: Tensor | int, b: Tensor | int) -> Tensor:
    """Return `a ^ b`: of bools, whether exactly one is True. See `bitwise_and`."""
    return _bitwise("bitwise_xor", np.bitwise_xor, a, b)


@op
def bitwise_not(x: Tensor) -> Tensor:
    """Return `~x`: True for False, and inverted bits of integers. See `bitwise_and`."""
    check_kind("bitwise_not", x, "bool", "int")
    return Tensor.from_numpy(np.asarray(np.invert(x.numpy()))).copy()


def _bitwise(op: str, function: Callable[..., Any], a: Any, b: Any) -> Tensor:
    dtype, _ = checked_pair(op, a, b)
    for x in (a, b):
        if isinstance(x, Tensor):
            check_kind(op, x, "bool", "int")
    values = [
        x.numpy() if isinstance(x, Tensor) else checked_scalar(op, x, dtype)
        for x in (a, b)
    ]
    return Tensor.from_numpy(np.asarray(function(*values)))


@op
def outer(a: Tensor, b: Tensor) -> Tensor:
    """Return the outer product of two vectors.

    out[i, j] = a[i] * b[j]

    Args:
        a: A vector [n] of any dtype.
        b: A vector [m] with the same dtype.

    Returns:
        A tensor [n, m] with this dtype.

    Raises:
        ShapeError: If an argument is not a vector.
        DTypeError: If the dtypes differ.
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
        angle: A float32 tensor of angles in radians, with a shape that broadcasts.

    Returns:
        A complex64 tensor with the broadcast shape.

    Raises:
        DTypeError: If a dtype is not float32.
        ShapeError: If the shapes do not broadcast.
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
def clip(
    x: Tensor,
    min: float | None = None,  # noqa: A002 (the field's word)
    max: float | None = None,  # noqa: A002
) -> Tensor:
    """Limit the elements of a real tensor to a range.

    out = minimum(maximum(x, min), max); NaN stays NaN

    The bounds are numbers that the kind of the dtype can represent. One of them may be
    None.
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
    """Return `max(x, 0)` element by element.

    Complex and bool tensors are not supported. NaN stays NaN.
    """
    return clip(x, min=0)


@op
def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Apply the Gaussian error linear unit (GELU), exact or with a tanh approximation.

    "none": out = x * (1 + erf(x / sqrt(2))) / 2
    "tanh": out = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2

    Source: Hendrycks, Gimpel, Gaussian Error Linear Units, 2016.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise TensorError(
            f"[gelu] approximate must be 'none' or 'tanh': {approximate!r:.80}"
        )
    if approximate == "none":
        return in_float64("gelu", lambda v: v * (1.0 + _erf(v * math.sqrt(0.5))) / 2.0, x)
    inner = math.sqrt(2.0 / math.pi)
    return in_float64(
        "gelu", lambda v: v * (1.0 + np.tanh(inner * (v + 0.044715 * v**3))) / 2.0, x
    )


def _fits_kernel(a: Any, b: Any) -> bool:
    """Return whether the kernel can read two operands directly.

    Both must be contiguous tensors with the same shape and the same kernel dtype.
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
    """Run an element-wise kernel on contiguous operands with the same shape and dtype."""
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
    """Apply a NumPy function to operands that broadcast, one of which may be a number.

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
    # NumPy's complex product uses fused multiply-adds on some machines only, so its
    # results would differ between machines.
    out.real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
