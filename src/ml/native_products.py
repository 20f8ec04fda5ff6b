"""The products' part of the door to C (see `native.py`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .dtype import int8_block, nf4
from .errors import DTypeError, ShapeError
from .kernel_settings import ffi, kernel_threads, lib
from .native_checks import (
    check_apart,
    check_dtype,
    check_ndim,
    check_shape,
    dense,
    output,
    strided_rows,
)
from .native_memory import pointer, scratch
from .quantized import QuantizedTensor

if TYPE_CHECKING:
    from .quantized import Weight
    from .tensor import Tensor

# Multiply-adds of one call of linear, at most: Python sees an interrupt between two calls.
PRODUCTS_PER_CALL = 2**33
_PANEL: int = lib.PANEL_TOKENS

# (x, weight, out) of linear; the last has no batched_matmul.
_PRODUCTS: dict[tuple[str, str, str], int] = {
    ("bfloat16", "bfloat16", "bfloat16"): lib.PRODUCT_BF16,
    ("bfloat16", "bfloat16", "float32"): lib.PRODUCT_BF16,
    ("float32", "float32", "float32"): lib.PRODUCT_F32,
    ("float32", "float16", "float32"): lib.PRODUCT_F32_F16,
}
_PRODUCTS |= {
    (x, int8_block.name, out): kind for (x, weight, out), kind in _PRODUCTS.items() if x == weight
}
# These are products of float32 all.
_PRODUCTS |= {
    ("bfloat16", nf4.name, "bfloat16"): lib.PRODUCT_BF16_F32,
    ("bfloat16", nf4.name, "float32"): lib.PRODUCT_BF16_F32,
    ("float32", nf4.name, "float32"): lib.PRODUCT_F32,
}
_RESULTS = {"bfloat16": lib.TYPE_BF16, "float32": lib.TYPE_F32}

_LINEAR_PARTS = ffi.typeof("LinearPart[]")


def _product_kind(op: str, x: "Tensor", weight: "Weight", out: "Tensor") -> int:
    names = (x._dtype.name, weight._dtype.name, out._dtype.name)
    kind = _PRODUCTS.get(names)
    if kind is None:
        known = "; ".join(f"{a} x {b} -> {c}" for a, b, c in _PRODUCTS)
        raise DTypeError(
            f"[{op}] dtypes must be one of {known}: {names[0]} x {names[1]} -> {names[2]}"
        )
    return kind


def linear(x: "Tensor", weights: "Sequence[Weight]", outs: "Sequence[Tensor]") -> None:
    """Multiply rows by some weights, each stored [out, in].

    outs[p][t, o] = sum over i of x[t, i] * weights[p][o, i]

    Args:
        x: [T, in] bfloat16 or float32.
        weights: at least one, [out, in] each, all of one dtype: bfloat16 with bfloat16; float32 or
            float16 with float32; a block-quantised one with either.
        outs: one for each weight, [T, out], all of one dtype: bfloat16 or float32 from bfloat16;
            float32 from float32.

    Raises:
        ShapeError: sizes that do not fit together.
        DTypeError: a combination of dtypes that has no kernel.
        TensorError: not contiguous, not aligned, read-only or overlapping.
    """
    threads = kernel_threads()
    if not 0 < len(weights) == len(outs):
        raise ShapeError(
            f"[linear] len(weights) must equal len(outs) and be >= 1: {len(weights)} != {len(outs)}"
        )
    kind = _product_kind("linear", x, weights[0], outs[0])
    check_ndim("linear", "x", x, 2)
    (T, columns), x_at = x._shape, dense("linear", "x", x)
    parts = [_check_part(x, x_at, weights, outs, p) for p in range(len(weights))]
    features = sum(part[2] for part in parts)
    if T * features == 0:
        return
    out_type, out_bytes = _RESULTS[outs[0]._dtype.name], outs[0]._dtype.itemsize
    row_bytes, step = columns * x._dtype.itemsize, rows_per_call(T, columns * features)
    shared = scratch(lib.product_scratch_bytes(columns, threads))
    for t in range(0, T, step):
        places = [
            (weight_at, pointer(out_at + t * rows * out_bytes), rows, *quantized)
            for weight_at, out_at, rows, quantized in parts
        ]
        lib.linear(
            pointer(x_at + t * row_bytes), ffi.new(_LINEAR_PARTS, places), len(places),
            shared, min(step, T - t), columns, kind, out_type, threads,
        )  # fmt: skip


def rows_per_call(T: int, products_per_row: int) -> int:
    """Cut T rows into calls of nearly equal size, of whole panels where there are several."""
    most = max(1, PRODUCTS_PER_CALL // max(1, products_per_row))
    calls = -(-T // most)
    return min(most, -(-T // (calls * _PANEL)) * _PANEL)


def _check_part(
    x: "Tensor", x_at: int, weights: "Sequence[Weight]", outs: "Sequence[Tensor]", part: int
) -> tuple[Any, int, int, list[Any]]:
    """Check one weight and its result; return what LinearPart holds, with out's address."""
    weight, out = weights[part], outs[part]
    check_dtype("linear", "weight", weight, weights[0])
    check_dtype("linear", "out", out, outs[0])
    check_ndim("linear", "weight", weight, 2)
    (T, columns), (rows, weight_columns) = x._shape, weight._shape
    if columns != weight_columns:
        raise ShapeError(
            f"[linear] x.shape[1] must equal weight.shape[1]: {columns} != {weight_columns} "
            f"(x {list(x.shape)}, weight {list(weight.shape)})"
        )
    check_shape("linear", "out", out, (T, rows))
    (weight_at, *quantized), out_at = _weight_fields(weight), output("linear", out)
    if out._size:
        check_apart("linear", out, out_at, x_at, x.nbytes)
        for other in (*(part for w in weights for part in w.parts()), *outs[:part]):
            check_apart("linear", out, out_at, other.data_pointer, other.nbytes)
    return weight_at, out_at, rows, quantized


def _weight_fields(weight: "Weight") -> tuple[Any, ...]:
    """Return LinearPart's `weight`, and its `quantized` where there is one."""
    if isinstance(weight, QuantizedTensor):
        return ffi.NULL, weight.kernel_fields
    return (pointer(dense("linear", "weight", weight)),)


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
    (a_at, a_bytes), (b_at, b_bytes) = strided_rows("a", a), strided_rows("b", b)
    (batch, m, k), (b_batch, n, b_k) = a._shape, b._shape
    if batch != b_batch or k != b_k:
        raise ShapeError(
            f"[batched_matmul] a.shape[0] and a.shape[2] must equal b's: {batch} and {k} != "
            f"{b_batch} and {b_k} (a {list(a.shape)}, b {list(b.shape)})"
        )
    check_shape("batched_matmul", "out", out, (batch, m, n))
    out_at = output("batched_matmul", out)
    if out._size == 0:
        return
    check_apart("batched_matmul", out, out_at, a_at, a_bytes)
    check_apart("batched_matmul", out, out_at, b_at, b_bytes)
    shared = scratch(lib.product_scratch_bytes(k, threads))
    lib.batched_matmul(
        pointer(a_at), *a._strides[:2], pointer(b_at), *b._strides[:2], pointer(out_at),
        shared, batch, m, n, k, kind, _RESULTS[out._dtype.name], threads,
    )  # fmt: skip
