"""Ops that pick rows by number."""

from ..dtype import int32
from ..errors import DTypeError, IndexOutOfRangeError
from ..tensor import Tensor
from .support import check_ndim_at_least


def get_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Pick rows of a table: the embedding lookup.

    out[t, ...] = table[ids[t], ...]

    Args:
        table: a tensor [V, ...] of any dtype, [V, D] for embeddings.
        ids: an int32 tensor, [T] for tokens; each `0 <= id < V`.

    Returns:
        A tensor [T, ...] of the dtype of the table.

    Raises:
        DTypeError: ids that are not int32.
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
    result = Tensor._empty((*ids.shape, *table.shape[1:]), table.dtype)
    result.bits()[...] = table.bits()[numbers]
    return result
