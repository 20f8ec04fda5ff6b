"""Products of matrices. Every element is one dot product, summed in one order (see `native.py`)."""

import itertools
from collections.abc import Sequence

from .. import native
from ..dtype import DType, bfloat16, float16, float32
from ..errors import DTypeError, ShapeError
from ..layout import Shape, broadcast_shapes, broadcast_strides
from ..quantized import QuantizedTensor, Weight
from ..tensor import Tensor
from .elementwise import add
from .support import (
    as_rows,
    check_float,
    check_float_result,
    check_ndim_at_least,
    check_same_dtype,
)


def linear_transformation(
    x: Tensor, weight: Weight, dtype: DType | None = None, bias: Tensor | None = None
) -> Tensor:
    """Map rows through a weight matrix, as a linear layer does.

    out[..., o] = sum_i x[..., i] * weight[o, i] + bias[o], accumulated in float32, rounded once

    Args:
        x: a real floating-point tensor [..., in].
        weight: a tensor [out, in] of the same dtype, or float16 next to a float32 `x`, or a
            block-quantised one: the result has the bits of the product with the weight dequantised
            to the dtype of `x`, for int8, or of both in float32, for nf4. But bfloat16 `x` and int8
            rows of whole blocks are multiplied as integers, for which elements of `x` are off by at
            most 2^-15 of the largest of their 32. It is used where it lies: nothing is copied if it
            is contiguous.
        dtype: of the result; that of `x` when left out.
        bias: a real floating-point tensor [out], added before the rounding; nothing when left out.

    Returns:
        A tensor [..., out].

    Raises:
        ShapeError: `x.shape[-1]` differs from `weight.shape[1]`, or the bias is not [out].
        DTypeError: not floating point, or dtypes that do not go together.
    """
    return _linear("linear_transformation", x, (weight,), dtype, (bias,))[0]


def linear_transformations(
    x: Tensor,
    weights: Sequence[Weight],
    dtype: DType | None = None,
    biases: Sequence[Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    """Map rows through several weight matrices at once, reading the rows once.

    out_p[..., o] = sum_i x[..., i] * weight_p[o, i] + bias_p[o], accumulated in float32, rounded
    once

    Args:
        x: a real floating-point tensor [..., in].
        weights: tensors [out_p, in] of one dtype: that of `x`, or float16 next to a float32 `x`,
            or a block-quantised one. They are used where they lie: nothing is copied if they are
            contiguous.
        dtype: of the results; that of `x` when left out.
        biases: for each weight a real floating-point tensor [out_p], or None; all None when left
            out.

    Returns:
        A tensor [..., out_p] for each weight, in their order: the bits of `linear_transformation`.

    Raises:
        ShapeError: `x.shape[-1]` differs from a `weight.shape[1]`, a bias is not [out_p], there
            are not as many biases as weights, or there is no weight.
        DTypeError: not floating point, or dtypes that do not go together.
    """
    op = "linear_transformations"
    biases = (None,) * len(weights) if biases is None else biases
    if not 0 < len(weights) == len(biases):
        raise ShapeError(
            f"[{op}] len(biases) must equal len(weights) >= 1: {len(biases)} != {len(weights)}"
        )
    return _linear(op, x, weights, dtype, biases)


def _linear(
    op: str,
    x: Tensor,
    weights: Sequence[Weight],
    dtype: DType | None,
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    dtype, has_bias = dtype or x._dtype, False
    for weight, bias in zip(weights, biases, strict=True):
        _check_linear(op, x, weight, weights[0], dtype)
        if bias is not None:
            _check_bias(op, weight, bias)
            has_bias = True
    if x._dtype is float16:
        x = x.to(float32)
    # What is still to be added to is not rounded before.
    out_dtype = _kernel_result(x._dtype, float32 if has_bias else dtype)
    rows, columns = x._shape[:-1], x._shape[-1]
    results = [Tensor._empty((*rows, w._shape[0]), out_dtype) for w in weights]
    native.linear(
        as_rows(x.contiguous(), columns),
        [w if isinstance(w, QuantizedTensor) else w.contiguous() for w in weights],
        results if len(rows) == 1 else [as_rows(r, r._shape[-1]) for r in results],
    )
    if out_dtype is dtype and not has_bias:
        return tuple(results)
    return tuple(
        (result if bias is None else add(result, bias.to(float32))).to(dtype)
        for result, bias in zip(results, biases, strict=True)
    )


def _check_linear(op: str, x: Tensor, weight: Weight, first: Weight, dtype: DType) -> None:
    if (
        x._dtype is weight._dtype is first._dtype
        and x._dtype.is_float
        and dtype.is_float
        and len(weight._shape) == 2
        and x._shape[-1:] == weight._shape[1:]
    ):
        return  # nothing of what is told apart below
    is_quantized = isinstance(weight, QuantizedTensor)
    check_float(op, x, *(() if is_quantized else (weight,)))
    check_float_result(op, dtype)
    check_ndim_at_least(op, x, 1)
    if weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"[{op}] x.shape[-1] must equal weight.shape[1] of a weight "
            f"[out, in]: {x.shape[-1]} != {weight.shape[-1] if weight.ndim else None} "
            f"(x {list(x.shape)}, weight {list(weight.shape)})"
        )
    pair = (x.dtype, weight.dtype)
    if x.dtype is not weight.dtype and pair != (float32, float16) and not is_quantized:
        raise DTypeError(
            f"[{op}] x.dtype must equal weight.dtype, or be float32 next to "
            f"float16: {x.dtype} != {weight.dtype} "
            f"(x {list(x.shape)}, weight {list(weight.shape)})"
        )
    if weight.dtype is not first.dtype:
        raise DTypeError(f"[{op}] weights must have one dtype: {first.dtype} != {weight.dtype}")


def _check_bias(op: str, weight: Weight, bias: Tensor) -> None:
    check_float(op, bias)
    if bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"[{op}] bias.shape must equal weight.shape[:1]: {list(bias.shape)} "
            f"!= {list(weight.shape[:1])} (weight {list(weight.shape)})"
        )


def _kernel_result(operands: DType, wanted: DType) -> DType:
    """Choose what the kernel writes: bfloat16 only from bfloat16, else float32."""
    return bfloat16 if operands is bfloat16 and wanted is bfloat16 else float32


def matmul(a: Tensor, b: Tensor, dtype: DType | None = None) -> Tensor:
    """Multiply matrices, or stacks of them.

    out[..., i, j] = sum_k a[..., i, k] * b[..., k, j], accumulated in float32, rounded once

    A vector counts as one row on the left and as one column on the right, and that dimension is
    left out of the result. The kernel reads rows of `a` and columns of `b`: what is contiguous
    along k (a transposed view, say) is used where it lies, the rest is packed first.

    Args:
        a: a real floating-point tensor [..., m, k] or [k].
        b: a tensor [..., k, n] or [k] of the same dtype; leading sizes broadcast.
        dtype: of the result; that of `a` when left out.

    Returns:
        A tensor [..., m, n].

    Raises:
        ShapeError: the sizes of k differ, the leading sizes do not broadcast, or there are none.
        DTypeError: not floating point, or the dtypes differ.
    """
    dtype = dtype or a.dtype
    check_float("matmul", a, b)
    check_float_result("matmul", dtype)
    check_same_dtype("matmul", a, b)
    check_ndim_at_least("matmul", a, 1)
    check_ndim_at_least("matmul", b, 1)
    rows = a if a.ndim > 1 else a.reshape(1, a.shape[0])
    columns = b.transpose(-1, -2) if b.ndim > 1 else b.reshape(1, b.shape[0])
    if rows.shape[-1] != columns.shape[-1]:
        raise ShapeError(
            f"[matmul] a.shape[-1] must equal b.shape[-2]: {rows.shape[-1]} != "
            f"{columns.shape[-1]} (a {list(a.shape)}, b {list(b.shape)})"
        )
    result = _dot_products(_unit_stride(rows), _unit_stride(columns), dtype)
    if a.ndim == 1 or b.ndim == 1:
        kept_rows = result.shape[-2:-1] if a.ndim > 1 else ()
        kept_columns = result.shape[-1:] if b.ndim > 1 else ()
        result = result.reshape(result.shape[:-2] + kept_rows + kept_columns)
    return result.to(dtype)


def _unit_stride(x: Tensor) -> Tensor:
    """Give a tensor whose last dimension lies side by side, and which the kernels can address."""
    if x.dtype is float16:
        return x.to(float32)
    itemsize = x.dtype.itemsize
    usable = x.strides[-1] == itemsize and min(x.strides) >= 0
    if usable and not any(n % itemsize for n in (x.data_pointer, *x.strides)):
        return x
    return x.copy()


def _dot_products(rows: Tensor, columns: Tensor, dtype: DType) -> Tensor:
    """Compute out[..., i, j] = dot(rows[..., i, :], columns[..., j, :]) over broadcast batches."""
    m, n, k = rows.shape[-2], columns.shape[-2], rows.shape[-1]
    batch = broadcast_shapes("matmul", rows.shape[:-2], columns.shape[:-2])
    result = Tensor._empty((*batch, m, n), _kernel_result(rows.dtype, dtype))
    if result.size == 0:
        return result
    stack = batch or (1,)
    wide_rows, wide_columns = _spread(rows, (*stack, m, k)), _spread(columns, (*stack, n, k))
    out = result if batch else result.reshape(1, m, n)
    if len(stack) == 1:
        native.batched_matmul(wide_rows, wide_columns, out)
        return result
    # The kernel takes one batch dimension; all but the last are walked here.
    for place in itertools.product(*(range(size) for size in stack[:-1])):
        native.batched_matmul(wide_rows[place], wide_columns[place], out[place])
    return result


def _spread(x: Tensor, shape: Shape) -> Tensor:
    """Repeat a tensor over a broadcast shape, without a copy."""
    if x.shape == shape:
        return x
    return x._view(shape, broadcast_strides(x.shape, x.strides, shape), x.offset)
