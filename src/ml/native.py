"""The only door to C: checks dtypes, layouts, sizes and overlaps, and then calls a kernel.

The kernels compute and check nothing, so whatever could make them read or write outside of a
tensor is refused here. Every function writes into `out`, which the caller has allocated.
"""

import threading
from typing import TYPE_CHECKING, Any

from .errors import DTypeError, ShapeError, TensorError
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
    "get_num_threads",
    "linear",
    "multiply",
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
# (x, weight, out) of linear; the last has no batched_matmul.
_PRODUCTS: dict[tuple[str, str, str], int] = {
    ("bfloat16", "bfloat16", "bfloat16"): lib.PRODUCT_BF16,
    ("bfloat16", "bfloat16", "float32"): lib.PRODUCT_BF16,
    ("float32", "float32", "float32"): lib.PRODUCT_F32,
    ("float32", "float16", "float32"): lib.PRODUCT_F32_F16,
}
_MAX_COLUMNS = 2**31 - 1

_cast = ffi.cast
_VOID_POINTER = ffi.typeof("void *")
_allocate = ffi.new_allocator(should_clear_after_alloc=False)
_local = threading.local()


def _scratch(threads: int) -> Any:
    """Return the products' scratch, a fixed number of bytes for each kernel thread.

    It belongs to the calling thread, so that two threads may compute at once, and is kept.
    """
    if getattr(_local, "threads", 0) < threads:
        _local.scratch = _allocate("char[]", threads * lib.product_scratch_bytes() + 64)
        _local.threads = threads
    return _local.scratch


def _pointer(x: "Tensor") -> Any:
    return _cast(_VOID_POINTER, x.data_pointer)


def _type_code(op: str, label: str, x: "Tensor", codes: dict[str, int]) -> int:
    code = codes.get(x.dtype.name)
    if code is None:
        raise DTypeError(
            f"[{op}] {label}.dtype must be one of {', '.join(codes)}: {x.dtype.name} "
            f"({label} {list(x.shape)})"
        )
    return code


def _check_contiguous(op: str, label: str, x: "Tensor") -> None:
    """Check that elements lie side by side, and at a multiple of their size."""
    if not x.is_contiguous:
        raise TensorError(
            f"[{op}] {label} must be contiguous and aligned: strides {list(x.strides)} of shape "
            f"{list(x.shape)} at address {x.data_pointer}"
        )


def _check_aligned(op: str, label: str, x: "Tensor") -> None:
    if x.data_pointer % x.dtype.itemsize:
        raise TensorError(
            f"[{op}] {label} must be aligned to its elements: address {x.data_pointer} % "
            f"{x.dtype.itemsize} != 0"
        )


def _check_shape(op: str, label: str, x: "Tensor", shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise ShapeError(f"[{op}] {label}.shape must equal {list(shape)}: {list(x.shape)}")


def _check_ndim(op: str, label: str, x: "Tensor", ndim: int) -> None:
    if len(x.shape) != ndim:
        raise ShapeError(
            f"[{op}] {label}.ndim must equal {ndim}: {len(x.shape)} ({label} {list(x.shape)})"
        )


def _byte_range(x: "Tensor") -> tuple[int, int]:
    """Return the addresses of the first byte and past the last one (strides not negative)."""
    start = x.data_pointer
    if x.is_contiguous:
        return start, start + x.nbytes
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
    return start, start + last + x.dtype.itemsize


def _check_output(
    op: str, out: "Tensor", inputs: tuple["Tensor", ...], in_place: bool = False
) -> None:
    """Check that out may be written, and overlaps no input (but may be one, if `in_place`)."""
    if not out.storage.writable:
        raise TensorError(f"[{op}] out must be writable: it is read-only (out {list(out.shape)})")
    start, end = _byte_range(out)
    for x in inputs:
        low, high = _byte_range(x)
        if low < end and start < high:
            if in_place and low == start and x.dtype.itemsize == out.dtype.itemsize:
                continue
            raise TensorError(
                f"[{op}] out must not overlap an input: bytes [{start}, {end}) and [{low}, {high})"
            )


def _product_kind(op: str, x: "Tensor", weight: "Tensor", out: "Tensor") -> int:
    names = (x.dtype.name, weight.dtype.name, out.dtype.name)
    kind = _PRODUCTS.get(names)
    if kind is None:
        known = "; ".join(f"{a} x {b} -> {c}" for a, b, c in _PRODUCTS)
        raise DTypeError(
            f"[{op}] dtypes must be one of {known}: {names[0]} x {names[1]} -> {names[2]}"
        )
    return kind


def linear(x: "Tensor", weight: "Tensor", out: "Tensor") -> None:
    """Multiply rows by a weight stored [out, in].

    out[t, o] = sum over i of x[t, i] * weight[o, i]

    Args:
        x: [T, in] bfloat16 or float32.
        weight: [out, in] bfloat16 with bfloat16; float32 or float16 with float32.
        out: [T, out] bfloat16 or float32 from bfloat16; float32 from float32.

    Raises:
        ShapeError: sizes that do not fit together.
        DTypeError: a combination of dtypes that has no kernel.
        TensorError: not contiguous, not aligned, read-only or overlapping.
    """
    threads = kernel_threads()
    kind = _product_kind("linear", x, weight, out)
    _check_ndim("linear", "x", x, 2)
    _check_ndim("linear", "weight", weight, 2)
    (T, columns), (rows, weight_columns) = x.shape, weight.shape
    if columns != weight_columns:
        raise ShapeError(
            f"[linear] x.shape[1] must equal weight.shape[1]: {columns} != {weight_columns} "
            f"(x {list(x.shape)}, weight {list(weight.shape)})"
        )
    _check_shape("linear", "out", out, (T, rows))
    _check_contiguous("linear", "x", x)
    _check_contiguous("linear", "weight", weight)
    _check_contiguous("linear", "out", out)
    if T == 0 or rows == 0:
        return
    _check_output("linear", out, (x, weight))
    lib.linear(
        _pointer(x), _pointer(weight), _pointer(out), _scratch(threads), T, columns, rows, kind,
        _TYPES[out.dtype.name], threads,
    )  # fmt: skip


def _check_strided_rows(op: str, label: str, x: "Tensor") -> None:
    _check_ndim(op, label, x, 3)
    itemsize = x.dtype.itemsize
    batch_stride, row_stride, stride = x.strides
    if stride != itemsize and x.shape[2] > 1:
        raise TensorError(
            f"[{op}] {label}.strides[2] must equal {itemsize}: {stride} (shape {list(x.shape)})"
        )
    if batch_stride < 0 or row_stride < 0 or batch_stride % itemsize or row_stride % itemsize:
        raise TensorError(
            f"[{op}] {label}.strides must be multiples of {itemsize}, not negative: "
            f"{list(x.strides)}"
        )
    _check_aligned(op, label, x)


def batched_matmul(a: "Tensor", b: "Tensor", out: "Tensor") -> None:
    """Multiply the rows of a by the rows of b, for each member of a batch.

    out[i, r, s] = sum over l of a[i, r, l] * b[i, s, l]

    Args:
        a: [batch, m, k] bfloat16 or float32, unit stride along k, others any that are not negative.
        b: [batch, n, k] the dtype of a, laid out likewise.
        out: [batch, m, n] bfloat16 or float32 from bfloat16, float32 from float32; contiguous.

    Raises:
        ShapeError: sizes that do not fit together.
        DTypeError: a combination of dtypes that has no kernel.
        TensorError: a layout that has no kernel, read-only or overlapping.
    """
    threads = kernel_threads()
    kind = _product_kind("batched_matmul", a, b, out)
    if kind == lib.PRODUCT_F32_F16:
        raise DTypeError("[batched_matmul] a.dtype must equal b.dtype: float32 != float16")
    _check_strided_rows("batched_matmul", "a", a)
    _check_strided_rows("batched_matmul", "b", b)
    (batch, m, k), (b_batch, n, b_k) = a.shape, b.shape
    if batch != b_batch or k != b_k:
        raise ShapeError(
            f"[batched_matmul] a.shape[0] and a.shape[2] must equal b's: {batch} and {k} != "
            f"{b_batch} and {b_k} (a {list(a.shape)}, b {list(b.shape)})"
        )
    _check_shape("batched_matmul", "out", out, (batch, m, n))
    _check_contiguous("batched_matmul", "out", out)
    if out.nbytes == 0:
        return
    _check_output("batched_matmul", out, (a, b))
    lib.batched_matmul(
        _pointer(a), a.strides[0], a.strides[1], _pointer(b), b.strides[0], b.strides[1],
        _pointer(out), _scratch(threads), batch, m, n, k, kind, _TYPES[out.dtype.name], threads,
    )  # fmt: skip


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
    x_type = _type_code("softmax", "x", x, _ACTIVATIONS)
    out_type = _type_code("softmax", "out", out, _ACTIVATIONS)
    _check_ndim("softmax", "x", x, 2)
    _check_shape("softmax", "out", out, x.shape)
    _check_contiguous("softmax", "x", x)
    _check_contiguous("softmax", "out", out)
    if out.nbytes == 0:
        return
    _check_output("softmax", out, (x,), in_place=True)
    rows, n = x.shape
    lib.softmax(_pointer(x), x_type, _pointer(out), out_type, rows, n, threads)


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
    x_type = _type_code("rms_norm", "x", x, _ACTIVATIONS)
    weight_type = _type_code("rms_norm", "weight", weight, _TYPES)
    out_type = _type_code("rms_norm", "out", out, _ACTIVATIONS)
    _check_ndim("rms_norm", "x", x, 2)
    rows, D = x.shape
    _check_shape("rms_norm", "weight", weight, (D,))
    _check_shape("rms_norm", "out", out, (rows, D))
    _check_contiguous("rms_norm", "x", x)
    _check_contiguous("rms_norm", "weight", weight)
    _check_contiguous("rms_norm", "out", out)
    if out.nbytes == 0:
        return
    _check_output("rms_norm", out, (x,), in_place=True)
    _check_output("rms_norm", out, (weight,))
    lib.rms_norm(
        _pointer(x), x_type, _pointer(weight), weight_type, _pointer(out), out_type, eps, rows, D,
        threads,
    )  # fmt: skip


def rotary(x: "Tensor", frequencies: "Tensor", out: "Tensor") -> None:
    """Turn neighbouring pairs of each head by the angles of their position.

    out[t, k, 2i] + i out[t, k, 2i+1] = (x[t, k, 2i] + i x[t, k, 2i+1]) * frequencies[t, i]

    Args:
        x: [T, heads, h] bfloat16 or float32, h even.
        frequencies: [T, h/2] complex64.
        out: [T, heads, h] the dtype of x; may be `x`.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    code = _type_code("rotary", "x", x, _ACTIVATIONS)
    _type_code("rotary", "frequencies", frequencies, {"complex64": 0})
    _type_code("rotary", "out", out, {x.dtype.name: code})
    _check_ndim("rotary", "x", x, 3)
    T, heads, h = x.shape
    if h % 2:
        raise ShapeError(f"[rotary] x.shape[2] must be even: {h} (x {list(x.shape)})")
    _check_shape("rotary", "frequencies", frequencies, (T, h // 2))
    _check_shape("rotary", "out", out, x.shape)
    _check_contiguous("rotary", "x", x)
    _check_contiguous("rotary", "frequencies", frequencies)
    _check_contiguous("rotary", "out", out)
    if out.nbytes == 0:
        return
    _check_output("rotary", out, (x,), in_place=True)
    _check_output("rotary", out, (frequencies,))
    angles = ffi.cast("float *", frequencies.data_pointer)
    lib.rotary(_pointer(x), angles, _pointer(out), code, T, heads, h, threads)


def _elementwise(op: str, code: int, inputs: tuple["Tensor", ...], out: "Tensor") -> None:
    threads = kernel_threads()
    type_code = _type_code(op, "out", out, _ACTIVATIONS)
    for x in inputs:
        _type_code(op, "input", x, {out.dtype.name: type_code})
        _check_shape(op, "input", x, out.shape)
        _check_contiguous(op, "input", x)
    _check_contiguous(op, "out", out)
    if out.nbytes == 0:
        return
    _check_output(op, out, inputs, in_place=True)
    lib.elementwise(
        code, _pointer(inputs[0]), _pointer(inputs[-1]), _pointer(out), type_code, out.size, threads
    )


def add(a: "Tensor", b: "Tensor", out: "Tensor") -> None:
    """Compute out = a + b; one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("add", lib.OP_ADD, (a, b), out)


def multiply(a: "Tensor", b: "Tensor", out: "Tensor") -> None:
    """Compute out = a * b; one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("multiply", lib.OP_MULTIPLY, (a, b), out)


def silu(x: "Tensor", out: "Tensor") -> None:
    """Compute out = x / (1 + exp(-x)); one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("silu", lib.OP_SILU, (x,), out)


def swiglu(gate: "Tensor", up: "Tensor", out: "Tensor") -> None:
    """Compute out = silu(gate) * up; one shape, one dtype (bfloat16 or float32), contiguous."""
    _elementwise("swiglu", lib.OP_SWIGLU, (gate, up), out)


def argmax(x: "Tensor", out: "Tensor") -> None:
    """Find the first maximum of each row; a NaN counts as the maximum.

    Args:
        x: [rows, n] bfloat16 or float32, n > 0.
        out: [rows] int32.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    code = _type_code("argmax", "x", x, _ACTIVATIONS)
    _type_code("argmax", "out", out, {"int32": 0})
    _check_ndim("argmax", "x", x, 2)
    rows, n = x.shape
    _check_shape("argmax", "out", out, (rows,))
    if not 0 < n <= _MAX_COLUMNS:
        raise ShapeError(f"[argmax] x.shape[1] must be in [1, {_MAX_COLUMNS}]: {n}")
    _check_contiguous("argmax", "x", x)
    _check_contiguous("argmax", "out", out)
    if rows == 0:
        return
    _check_output("argmax", out, (x,))
    indices = ffi.cast("int32_t *", out.data_pointer)
    lib.argmax(_pointer(x), code, indices, rows, n, threads)


def convert(x: "Tensor", out: "Tensor") -> None:
    """Convert between bfloat16, float16 and float32, rounding once to nearest even.

    Args:
        x: any shape, contiguous.
        out: that shape, contiguous, not overlapping x.

    Raises:
        ShapeError, DTypeError, TensorError: as for `linear`.
    """
    threads = kernel_threads()
    x_type = _type_code("convert", "x", x, _TYPES)
    out_type = _type_code("convert", "out", out, _TYPES)
    _check_shape("convert", "out", out, x.shape)
    _check_contiguous("convert", "x", x)
    _check_contiguous("convert", "out", out)
    if out.nbytes == 0:
        return
    _check_output("convert", out, (x,))
    lib.convert(_pointer(x), x_type, _pointer(out), out_type, x.size, threads)
