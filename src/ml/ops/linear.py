"""Matrix products. Each element is a dot product with a fixed summation order.

`csrc/kernels.h` documents this order for products with weights and for `matmul`.
"""

import itertools
import math
from collections.abc import Sequence

from .. import kernels
from ..adapted import active, adapted_rows
from ..checks import (
    KERNEL_DTYPES,
    check_float,
    check_ndim_at_least,
    check_same_dtype,
    describe_operands,
    float_dtype,
    kernel_operand,
)
from ..dtype import BlockDType, DType, bfloat16, float32
from ..errors import DTypeError, ShapeError
from ..kernels import MULTIPLY_ADDS_PER_CALL, ffi, lib
from ..layout import Shape, broadcast_shapes, broadcast_strides
from ..op import op
from ..quantized import Weight
from ..tensor import Tensor, allocate

_PANEL: int = lib.PANEL_TOKENS


@op
def linear_transformation(
    x: Tensor,
    weight: Weight,
    dtype: DType | str | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Apply a linear transformation to each row of `x`, as a linear layer does.

    out[..., o] = sum_i x[..., i] * weight[o, i] + bias[o], accumulated in float32,
    rounded once

    With a block-quantized weight, the result is bit-identical to a product with the
    weight dequantized to the dtype of `x`. There is one exception: if `x` is bfloat16 and
    its rows consist of whole blocks, they are multiplied as integers. The rounding error
    of an element of `x` is then at most 2^-15 of the largest magnitude in its group of
    32, or 1/254 of it if `weight.activations` is int8. The error of an nf4 weight is at
    most 2^-12 of its scale.

    Args:
        x: A real floating-point tensor [..., in].
        weight: A tensor [out, in]. It has the dtype of `x`, or a narrower dtype whose
            values the dtype of `x` can represent, or it is block-quantized. A contiguous
            weight is not copied.
        dtype: The dtype of the result. The default is the dtype of `x`.
        bias: A real floating-point tensor [out] that is added before rounding, or None.

    Returns:
        A tensor [..., out].

    Raises:
        ShapeError: If `x.shape[-1]` differs from `weight.shape[1]`, or if the shape of
            the bias is not [out].
        DTypeError: If an argument is not floating point or the dtypes are incompatible.
    """
    op = "linear_transformation"
    if active.rows is not None:
        return _adapted_linear(op, x, (weight,), dtype, (bias,))[0]
    return _linear(op, x, (weight,), dtype, (bias,))[0]


@op
def linear_transformations(
    x: Tensor,
    weights: Sequence[Weight],
    dtype: DType | str | None = None,
    biases: Sequence[Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    """Apply several linear transformations to each row of `x`, reading `x` only once.

    out_p = linear_transformation(x, weight_p, dtype, bias_p), bit for bit

    Args:
        x: A real floating-point tensor [..., in].
        weights: At least one weight [out_p, in], as in `linear_transformation`. If the
            weights have different dtypes or activations, `x` is read once per weight.
        dtype: The dtype of the results. The default is the dtype of `x`.
        biases: A bias or None for each weight. By default, no bias is added.

    Returns:
        A tensor [..., out_p] for each weight, in the same order.

    Raises:
        ShapeError: As in `linear_transformation`, and if there are no weights or the
            number of biases differs from the number of weights.
        DTypeError: As in `linear_transformation`.
    """
    op = "linear_transformations"
    biases = (None,) * len(weights) if biases is None else biases
    if not 0 < len(weights) == len(biases):
        lengths = f"{len(biases)} != {len(weights)}"
        raise ShapeError(f"[{op}] len(biases) must equal len(weights) >= 1: {lengths}")
    if active.rows is not None:
        return _adapted_linear(op, x, weights, dtype, biases)
    first = weights[0]._dtype
    activations = weights[0]._activations
    for weight in weights:
        if weight._dtype is not first or weight._activations != activations:
            pairs = zip(weights, biases, strict=True)
            return tuple([_linear(op, x, (w,), dtype, (bias,))[0] for w, bias in pairs])
    return _linear(op, x, weights, dtype, biases)


def _linear(
    op: str,
    x: Tensor,
    weights: Sequence[Weight],
    dtype: DType | str | None,
    biases: Sequence[Tensor | None],
    out: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the products of x with weights of one dtype, as `linear_transformations`.

    The only product is written to `out` [..., out], if it is given: a contiguous tensor
    of the dtype of the result.
    """
    operand = kernel_operand(op, x)
    x_dtype = x._dtype
    first = weights[0]._dtype
    dtype = x_dtype if dtype is None else float_dtype(op, dtype)
    out_dtype = bfloat16 if x_dtype is dtype is bfloat16 else float32
    # The size -1 of a tensor without dimensions never matches a weight.
    outer = x._shape[:-1]
    inner = x._shape[-1:] or (-1,)
    is_compatible = first is x_dtype or fits_product(operand._dtype, first)
    copies: list[Tensor] = []  # keeps kernel inputs alive until the kernel returns
    results = []
    parts = []
    features = 0
    for weight, bias in zip(weights, biases, strict=True):
        if not is_compatible or weight._shape[1:] != inner:
            raise _mismatch_error(op, x, weight)
        rows = weight._shape[0]
        bias_at = ffi.NULL
        bias_code = 0
        if bias is not None:
            bias = _checked_bias(op, weight, bias)
            copies.append(bias)
            bias_at = bias._pointer
            bias_code = bias._dtype.code
        if weight._weight is None and isinstance(weight, Tensor):
            weight = weight.contiguous()
            weight._weight = kernels.weight((weight._pointer,), weight._dtype.code)
            copies.append(weight)
        if out is None:
            result = allocate((*outer, rows), out_dtype)
        else:
            result = out.contiguous()  # a view has no pointer yet
        results.append(result)
        # Each tuple is a C `LinearPart`. The call converts the list to a C array.
        parts.append((result._pointer, weight._weight, bias_at, rows, bias_code))
        features += rows
    columns = inner[0]
    T = x._size // columns if columns else math.prod(outer)
    products = features * columns
    threads = kernels.threads
    scratch = kernels.scratch(lib.product_scratch_bytes(columns, threads))
    t = 0
    x_at = operand._pointer
    step = T if T * products <= MULTIPLY_ADDS_PER_CALL else rows_per_call(T, products)
    while features and t < T:
        if t:
            step = min(step, T - t)
            x_at = kernels.pointer(
                operand.data_pointer + t * columns * operand._dtype.itemsize
            )
            outs = [
                result.data_pointer + t * result._shape[-1] * out_dtype.itemsize
                for result in results
            ]
            parts = [
                (kernels.pointer(out), *part[1:])
                for out, part in zip(outs, parts, strict=True)
            ]
        lib.linear(
            parts,
            scratch,
            x_at,
            len(parts),
            step,
            columns,
            operand._dtype.code,
            out_dtype.code,
            threads,
        )
        t += step
    return tuple(
        results if out_dtype is dtype else [result.to(dtype) for result in results]
    )


def _adapted_linear(
    op: str,
    x: Tensor,
    weights: Sequence[Weight],
    dtype: DType | str | None,
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """Return the products, with the changes of the adapters that are active.

    out_p = x W_p^T + bias_p + sum over adapters of scale * (x A_p^T) B_p^T

    The terms are float32 and are added in this order. The sum is rounded once.
    """
    assert active.rows is not None
    adapted = active.rows
    names = [weight._name for weight in weights]
    with adapted_rows(()):  # the products below have no changes
        if adapted.products.isdisjoint(names):
            return linear_transformations(x, weights, dtype, biases)
        results = linear_transformations(x, weights, float32, biases)
    from .low_rank import add_changes  # only a pass with adapters needs it

    out_dtype = x._dtype if dtype is None else float_dtype(op, dtype)
    return add_changes(results, names, kernel_operand(op, x), adapted, out_dtype)


def rows_per_call(T: int, products_per_row: int) -> int:
    """Return the number of rows per kernel call, so that calls have nearly equal sizes.

    If T rows require more than one call, the result is a multiple of the panel size.
    """
    most = max(1, MULTIPLY_ADDS_PER_CALL // max(1, products_per_row))
    calls = -(-T // most)
    return min(most, -(-T // (calls * _PANEL)) * _PANEL)


def _mismatch_error(op: str, x: Tensor, weight: Weight) -> ShapeError | DTypeError:
    """Return the error for a weight that is incompatible with x."""
    check_ndim_at_least(op, x, 1)
    both = describe_operands(("x", x), ("weight", weight))
    if weight.ndim != 2 or x._shape[-1] != weight._shape[1]:
        return ShapeError(
            f"[{op}] x.shape[-1] must equal weight.shape[1] of a weight [out, in]: "
            f"{x._shape[-1]} != {weight._shape[-1] if weight.ndim else None} ({both})"
        )
    dtypes = f"{x.dtype} != {weight.dtype} ({both})"
    return DTypeError(
        f"[{op}] x.dtype must equal weight.dtype, or hold all its values: {dtypes}"
    )


def fits_product(x: DType, weight: DType | BlockDType) -> bool:
    """Return whether activations can be multiplied by a weight of a dtype."""
    if x is weight or isinstance(weight, BlockDType):
        return True
    return weight.product_type in ("bfloat16", x.name) and weight.itemsize < x.itemsize


def _checked_bias(op: str, weight: Weight, bias: Tensor) -> Tensor:
    check_float(op, bias)
    if bias._shape != weight._shape[:1]:
        shapes = (
            f"{list(bias.shape)} != {list(weight.shape[:1])} "
            f"({describe_operands(('weight', weight))})"
        )
        raise ShapeError(f"[{op}] bias.shape must equal weight.shape[:1]: {shapes}")
    return bias.contiguous()


@op
def matmul(a: Tensor, b: Tensor, dtype: DType | str | None = None) -> Tensor:
    """Multiply two matrices, or two batches of matrices.

    out[..., i, j] = sum_k a[..., i, k] * b[..., k, j], accumulated in float32, rounded
    once

    A vector is treated as one row if it is `a`, and as one column if it is `b`, and this
    dimension is removed from the result. Views are not copied. The sum over k processes
    blocks of 256 elements in order, as in `attention`.

    Args:
        a: A real floating-point tensor [..., m, k] or [k].
        b: A tensor [..., k, n] or [k] with the same dtype, or with a narrower dtype whose
            values the dtype of `a` can represent. With `dtype`, `a` may have the narrower
            dtype instead. Leading dimensions broadcast.
        dtype: The dtype of the result. The default is the dtype of `a`.

    Returns:
        A tensor [..., m, n].

    Raises:
        ShapeError: If the sizes of k differ, the leading dimensions do not broadcast, or
            an argument has no dimensions.
        DTypeError: If an argument is not floating point or the dtypes are incompatible.
    """
    check_float("matmul", a, b)
    if fits_product(a._dtype, b._dtype):
        b = b.to(a._dtype)
    elif dtype is not None and fits_product(b._dtype, a._dtype):
        a = a.to(b._dtype)
    check_same_dtype("matmul", a, b)
    dtype = a._dtype if dtype is None else float_dtype("matmul", dtype)
    check_ndim_at_least("matmul", a, 1)
    check_ndim_at_least("matmul", b, 1)
    rows = a if a.ndim > 1 else a.reshape(1, a.shape[0])
    columns = b.transpose(-1, -2) if b.ndim > 1 else b.reshape(1, b.shape[0])
    if rows.shape[-1] != columns.shape[-1]:
        both = describe_operands(("a", a), ("b", b))
        sizes = f"{rows.shape[-1]} != {columns.shape[-1]} ({both})"
        raise ShapeError(f"[matmul] a.shape[-1] must equal b.shape[-2]: {sizes}")
    result = _dot_products(_addressable(rows), _addressable(columns), dtype)
    if a.ndim == 1 or b.ndim == 1:
        kept_rows = result.shape[-2:-1] if a.ndim > 1 else ()
        kept_columns = result.shape[-1:] if b.ndim > 1 else ()
        result = result.reshape(result.shape[:-2] + kept_rows + kept_columns)
    return result.to(dtype)


def _addressable(x: Tensor) -> Tensor:
    """Return `x`, or a copy whose dtype and strides the kernels support."""
    if x.dtype not in KERNEL_DTYPES:
        return x.to(float32)
    itemsize = x.dtype.itemsize
    usable = min(x.strides) >= 0
    if usable and not any(n % itemsize for n in (x.data_pointer, *x.strides)):
        return x
    return x.copy()


def _dot_products(rows: Tensor, columns: Tensor, dtype: DType) -> Tensor:
    """Compute out[..., i, j] = dot(rows[..., i, :], columns[..., j, :])."""
    m = rows.shape[-2]
    n = columns.shape[-2]
    k = rows.shape[-1]
    batch = broadcast_shapes("matmul", rows.shape[:-2], columns.shape[:-2])
    out_dtype = bfloat16 if rows.dtype is dtype is bfloat16 else float32
    result = allocate((*batch, m, n), out_dtype)
    if result.size == 0:
        return result
    stack = batch or (1,)
    wide_rows = _spread(rows, (*stack, m, k))
    wide_columns = _spread(columns, (*stack, n, k))
    threads = kernels.threads
    scratch = kernels.scratch(lib.matmul_scratch_bytes(threads))
    # The kernel handles the last batch dimension, and this loop handles all others.
    for place in itertools.product(*(range(size) for size in stack[:-1])):
        a = wide_rows[place]
        b = wide_columns[place]
        out = result[place if batch else ...]
        lib.batched_matmul(
            kernels.pointer(out.data_pointer),
            scratch,
            kernels.pointer(a.data_pointer),
            kernels.pointer(b.data_pointer),
            stack[-1],
            m,
            n,
            k,
            *a.strides,
            *b.strides,
            a._dtype.code,
            out_dtype.code,
            threads,
        )
    return result


def _spread(x: Tensor, shape: Shape) -> Tensor:
    """Return a view of a tensor broadcast to another shape."""
    return x._view(shape, broadcast_strides(x._shape, x.strides, shape), x._offset)
