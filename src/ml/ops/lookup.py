"""Ops that pick rows by number."""

from .. import native
from ..dtype import DType, bfloat16, int32
from ..errors import DTypeError, IndexOutOfRangeError, ShapeError
from ..quantized import QuantizedTensor, Weight
from ..tensor import Tensor
from .support import check_float_result, check_ndim_at_least


def get_rows(table: Weight, ids: Tensor, dtype: DType | None = None) -> Tensor:
    """Pick rows of a table: the embedding lookup.

    out[t, ...] = table[ids[t], ...]

    Args:
        table: a tensor [V, ...] of any dtype, [V, D] for embeddings; a block-quantised one [V, D].
        ids: an int32 tensor, [T] for tokens; each `0 <= id < V`.
        dtype: of the result; that of the table when left out, or bfloat16 for a block-quantised
            table, whose elements are rounded once to it.

    Returns:
        A tensor [T, ...].

    Raises:
        DTypeError: ids that are not int32; a dtype to which a block-quantised table does not go.
        ShapeError: a table without dimensions.
        IndexOutOfRangeError: an id that has no row.
    """
    check_ndim_at_least("get_rows", table, 1)
    if ids.dtype is not int32:
        raise DTypeError(
            f"[get_rows] ids.dtype must equal int32: {ids.dtype} (ids {list(ids.shape)})"
        )
    numbers = ids.numpy()
    rows = table.shape[0]
    if ids.size:
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= rows:
            raise IndexOutOfRangeError(
                f"[get_rows] ids must be in [0, {rows}): {low if low < 0 else high} "
                f"(table {list(table.shape)}, ids {list(ids.shape)})"
            )
    if isinstance(table, QuantizedTensor):
        return _dequantized_rows(table, ids, dtype or bfloat16)
    result = Tensor._empty((*ids.shape, *table.shape[1:]), table.dtype)
    result.bits()[...] = table.bits()[numbers]
    return result if dtype is None else result.to(dtype)


def _dequantized_rows(table: QuantizedTensor, ids: Tensor, dtype: DType) -> Tensor:
    check_float_result("get_rows", dtype)
    if table.ndim != 2:
        raise ShapeError(
            f"[get_rows] ndim of a block-quantised table must equal 2: {table.ndim} "
            f"(shape {list(table.shape)})"
        )
    result = Tensor._empty((ids.size, table.shape[1]), dtype)
    native.dequantize(table, ids.contiguous().reshape(ids.size), result)
    return result.reshape(*ids.shape, table.shape[1])
