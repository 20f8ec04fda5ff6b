"""The only door to C: checks dtypes, layouts, sizes and overlaps, and then calls a kernel.

The kernels compute and check nothing, so whatever could make them read or write outside of a
tensor is refused here and, for the products, in `native_products.py`. Every function writes into
`out`, which the caller has allocated.
"""

from typing import TYPE_CHECKING

from .errors import ShapeError
from .kernel_settings import (
    KernelSettingError,
    available_isas,
    build_info,
    ffi,
    get_num_threads,
    kernel_threads,
    lib,
    set_isa,
    set_num_threads,
)
from .native_checks import (
    check_apart,
    check_apart_or_same,
    check_dtype,
    check_ndim,
    check_shape,
    dense,
    output,
    type_code,
)
from .native_memory import pointer
from .native_products import batched_matmul, linear
from .native_quantized import dequantize, quantize

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "KernelSettingError",
    "add",
    "argmax",
    "available_isas",
    "batched_matmul",
    "build_info",
    "convert",
    "dequantize",
    "get_num_threads",
    "linear",
    "multiply",
    "probe_multiply_add",
    "probe_read",
    "quantize",
    "rms_norm",
    "rotary",
    "set_isa",
    "set_num_threads",
    "silu",
    "softmax",
    "swiglu",
]

_TYPES = {"bfloat16": lib.TYPE_BF16, "float16": lib.TYPE_F16, "float32": lib.TYPE_F32}
_ACTIVATIONS = {"bfloat16": lib.TYPE_BF16, "float32": lib.TYPE_F32}
_MAX_COLUMNS = 2**31 - 1


def softmax(x: "Tensor", out: "Tensor") -> None:
    """Turn each row of scores into probabilities.

    out[r, i] = exp(x[r, i] - max) / sum over j of exp(x[r, j] - max)

    Columns of -Inf at the end change no bit of the rest. A row of -Inf only, or one that holds a
    NaN or +Inf, becomes NaN, as in PyTorch.

    Args:
        x: [rows, n] bfloat16 or float32.
        out: [rows, n] bfloat16 or float32; may be `x`.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    x_type = type_code("softmax", "x", x, _ACTIVATIONS)
    out_type = type_code("softmax", "out", out, _ACTIVATIONS)
    check_ndim("softmax", "x", x, 2)
    check_shape("softmax", "out", out, x._shape)
    x_at, out_at = dense("softmax", "x", x), output("softmax", out)
    if out._size == 0:
        return
    check_apart_or_same("softmax", out, out_at, x_at, x)
    lib.softmax(pointer(x_at), x_type, pointer(out_at), out_type, *x._shape, threads)


def rms_norm(x: "Tensor", weight: "Tensor", eps: float, out: "Tensor") -> None:
    """Scale each row by its root mean square, and by the weight.

    out[r, i] = x[r, i] * (1 / sqrt(mean over j of x[r, j]^2 + eps)) * weight[i]

    Args:
        x: [rows, D] bfloat16 or float32.
        weight: [D] bfloat16, float16 or float32.
        eps: added to the mean of the squares.
        out: [rows, D] bfloat16 or float32; may be `x`.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    x_type = type_code("rms_norm", "x", x, _ACTIVATIONS)
    weight_type = type_code("rms_norm", "weight", weight, _TYPES)
    out_type = type_code("rms_norm", "out", out, _ACTIVATIONS)
    check_ndim("rms_norm", "x", x, 2)
    rows, D = x._shape
    check_shape("rms_norm", "weight", weight, (D,))
    check_shape("rms_norm", "out", out, (rows, D))
    x_at, weight_at = dense("rms_norm", "x", x), dense("rms_norm", "weight", weight)
    out_at = output("rms_norm", out)
    if out._size == 0:
        return
    check_apart_or_same("rms_norm", out, out_at, x_at, x)
    check_apart("rms_norm", out, out_at, weight_at, weight.nbytes)
    lib.rms_norm(
        pointer(x_at), x_type, pointer(weight_at), weight_type, pointer(out_at), out_type, eps,
        rows, D, threads,
    )  # fmt: skip


def rotary(x: "Tensor", frequencies: "Tensor", out: "Tensor", halves: bool = False) -> None:
    """Turn the pairs of each head by the angles of their position.

    out[t, k, 2i] + i out[t, k, 2i+1] = (a + i b) * frequencies[t, i], where a and b are
    x[t, k, 2i] and x[t, k, 2i+1], or with halves x[t, k, i] and x[t, k, i + h/2]

    Args:
        x: [T, heads, h] bfloat16 or float32, h even.
        frequencies: [T, h/2] complex64.
        out: [T, heads, h] the dtype of x; may be `x` without halves.
        halves: whether the pairs of x lie half a head apart; those of out are neighbours always.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    code = type_code("rotary", "x", x, _ACTIVATIONS)
    type_code("rotary", "frequencies", frequencies, {"complex64": 0})
    check_dtype("rotary", "out", out, x)
    check_ndim("rotary", "x", x, 3)
    T, heads, h = x._shape
    if h % 2:
        raise ShapeError(f"[rotary] x.shape[2] must be even: {h} (x {list(x.shape)})")
    check_shape("rotary", "frequencies", frequencies, (T, h // 2))
    check_shape("rotary", "out", out, x._shape)
    x_at, turns_at = dense("rotary", "x", x), dense("rotary", "frequencies", frequencies)
    out_at = output("rotary", out)
    if out._size == 0:
        return
    if halves:
        check_apart("rotary", out, out_at, x_at, x.nbytes)
    else:
        check_apart_or_same("rotary", out, out_at, x_at, x)
    check_apart("rotary", out, out_at, turns_at, frequencies.nbytes)
    lib.rotary(
        pointer(x_at), pointer(turns_at), pointer(out_at), code, halves, T, heads, h, threads
    )


def _elementwise(op: str, code: int, a: "Tensor", b: "Tensor", out: "Tensor") -> None:
    threads = kernel_threads()
    code_of_type = type_code(op, "out", out, _ACTIVATIONS)
    out_at = output(op, out)
    addresses = []
    for x in (a, b):
        check_dtype(op, "input", x, out)
        check_shape(op, "input", x, out._shape)
        addresses.append(dense(op, "input", x))
        if out._size:
            check_apart_or_same(op, out, out_at, addresses[-1], x)
    a_at, b_at = addresses
    lib.elementwise(
        code, pointer(a_at), pointer(b_at), pointer(out_at), code_of_type, out._size, threads
    )


def add(a: "Tensor", b: "Tensor", out: "Tensor") -> None:
    """Compute out = a + b; one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("add", lib.OP_ADD, a, b, out)


def multiply(a: "Tensor", b: "Tensor", out: "Tensor") -> None:
    """Compute out = a * b; one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("multiply", lib.OP_MULTIPLY, a, b, out)


def silu(x: "Tensor", out: "Tensor") -> None:
    """Compute out = x / (1 + exp(-x)); one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("silu", lib.OP_SILU, x, x, out)


def swiglu(gate: "Tensor", up: "Tensor", out: "Tensor") -> None:
    """Compute out = silu(gate) * up; one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("swiglu", lib.OP_SWIGLU, gate, up, out)


def argmax(x: "Tensor", out: "Tensor") -> None:
    """Find the first maximum of each row; a NaN counts as the maximum.

    Args:
        x: [rows, n] bfloat16 or float32, n > 0.
        out: [rows] int32.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    code = type_code("argmax", "x", x, _ACTIVATIONS)
    type_code("argmax", "out", out, {"int32": 0})
    check_ndim("argmax", "x", x, 2)
    rows, n = x._shape
    check_shape("argmax", "out", out, (rows,))
    if not 0 < n <= _MAX_COLUMNS:
        raise ShapeError(f"[argmax] x.shape[1] must be in [1, {_MAX_COLUMNS}]: {n}")
    x_at, out_at = dense("argmax", "x", x), output("argmax", out)
    if rows == 0:
        return
    check_apart("argmax", out, out_at, x_at, x.nbytes)
    lib.argmax(pointer(x_at), code, pointer(out_at), rows, n, threads)


def convert(x: "Tensor", out: "Tensor") -> None:
    """Convert between bfloat16, float16 and float32, rounding once to nearest even.

    Args:
        x: any shape, contiguous.
        out: that shape, contiguous, not overlapping x.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    x_type = type_code("convert", "x", x, _TYPES)
    out_type = type_code("convert", "out", out, _TYPES)
    check_shape("convert", "out", out, x._shape)
    x_at, out_at = dense("convert", "x", x), output("convert", out)
    if out._size == 0:
        return
    check_apart("convert", out, out_at, x_at, x.nbytes)
    lib.convert(pointer(x_at), x_type, pointer(out_at), out_type, x._size, threads)


def probe_read(x: "Tensor", streams: int) -> int:
    """Read all bytes of a tensor once, on all threads, as fast as the machine can.

    result = exclusive or of its 32-bit words; an end of less than 4 bytes is left out

    Args:
        x: any shape and dtype, contiguous.
        streams: 1, 2, 4 or 8 places that each thread reads from in turn.

    Raises:
        TensorError: not contiguous.
    """
    threads = kernel_threads()
    x_at = dense("probe_read", "x", x)
    return int(lib.probe_read(pointer(x_at), x.nbytes, streams, threads)) if x._size else 0


def probe_multiply_add(dtype: str, rounds: int) -> int:
    """Run the multiply-adds of a product in registers, on all threads.

    Args:
        dtype: bfloat16 or float32, of both operands.
        rounds: how often each thread goes through its sums.

    Returns:
        The multiplications and additions done; 0 where the instruction set has no vectors.
    """
    kind = lib.PRODUCT_BF16 if dtype == "bfloat16" else lib.PRODUCT_F32
    return int(lib.probe_multiply_add(kind, rounds, ffi.new("float *"), kernel_threads()))
