"""The door to the kernels of attention; `native.py` has the others, and the rules for all."""

import math
from typing import TYPE_CHECKING

from .errors import ShapeError
from .kernel_settings import kernel_threads, lib
from .native_checks import (
    check_apart,
    check_dtype_is,
    check_ndim,
    check_shape,
    check_size,
    dense,
    output,
    type_code,
)
from .native_memory import pointer, scratch

if TYPE_CHECKING:
    from .key_value_cache import KeyValueCache
    from .tensor import Tensor

_TYPES = {"bfloat16": lib.TYPE_BF16, "float32": lib.TYPE_F32}
# Multiply-adds of one call: between two of them Python sees an interrupt.
_CALL_MULTIPLY_ADDS = 2**33

# The kernel computes powers of two.
_LOG2_E = math.log2(math.e)


def _check_rows(op: str, label: str, x: "Tensor", cache: "KeyValueCache", start_pos: int) -> int:
    """Check tokens [T, heads, h] that take places in the cache; return their dtype's number."""
    code = type_code(op, label, x, {cache.dtype.name: _TYPES[cache.dtype.name]})
    check_ndim(op, label, x, 3)
    T, _, h = x._shape
    if h != cache.head_dim:
        raise ShapeError(
            f"[{op}] {label}.shape[2] must equal cache.head_dim: {h} != {cache.head_dim} "
            f"({label} {list(x.shape)})"
        )
    if not 0 <= start_pos <= start_pos + T <= cache.positions:
        raise ShapeError(
            f"[{op}] start_pos and start_pos + T must be in [0, cache.positions]: {start_pos} and "
            f"{start_pos + T}, {cache.positions} ({label} {list(x.shape)})"
        )
    size = cache.heads * cache.capacity * h
    for part_label, part in (("cache.keys", cache.keys), ("cache.values", cache.values)):
        check_dtype_is(op, part_label, part, cache.dtype)
        check_size(op, part_label, part, size)
    return code


def write_cache(cache: "KeyValueCache", start_pos: int, xk: "Tensor", xv: "Tensor") -> None:
    """Lay keys and values into the cache.

    keys[start_pos + t, k, :] = xk[t, k, :], values[start_pos + t, k, :] = xv[t, k, :]

    Args:
        cache: takes them.
        start_pos: position of the first.
        xk: [T, K, h] in the dtype of the cache.
        xv: [T, K, h] in the dtype of the cache.

    Raises:
        ShapeError: sizes that do not fit the cache.
        DTypeError: another dtype than that of the cache.
        TensorError: not contiguous, not aligned, or overlapping the cache.
    """
    threads = kernel_threads()
    code = _check_rows("write_cache", "xk", xk, cache, start_pos)
    T = xk._shape[0]
    check_shape("write_cache", "xk", xk, (T, cache.heads, cache.head_dim))
    check_shape("write_cache", "xv", xv, xk._shape)
    type_code("write_cache", "xv", xv, {cache.dtype.name: code})
    places = [output("write_cache", x) for x in (cache.keys, cache.values)]
    rows = [dense("write_cache", "xk", xk), dense("write_cache", "xv", xv)]
    if T == 0:
        return
    for x, place in zip((cache.keys, cache.values), places, strict=True):
        for row in rows:
            check_apart("write_cache", x, place, row, xk.nbytes)
    lib.write_cache(
        *map(pointer, rows), *map(pointer, places), T, start_pos, cache.heads, cache.head_dim,
        cache.capacity, code, threads,
    )  # fmt: skip


def attention(xq: "Tensor", cache: "KeyValueCache", start_pos: int, out: "Tensor") -> None:
    """Mix the cached values of the positions that each token sees.

    out[t, i] = sum over s of softmax over s of (xq[t, i] . k[s, j] / sqrt(h)) * v[s, j],
    for s <= start_pos + t and j = i / (H / K)

    Args:
        xq: [T, H, h] in the dtype of the cache, H a multiple of K.
        cache: its positions below start_pos + T have been written.
        start_pos: position of the first token.
        out: [T, H, h], the dtype of xq.

    Raises:
        ShapeError, DTypeError, TensorError: as for `write_cache`.
    """
    threads = kernel_threads()
    code = _check_rows("attention", "xq", xq, cache, start_pos)
    T, H, h = xq._shape
    K = cache.heads
    if H % K:
        raise ShapeError(
            f"[attention] xq.shape[1] must be a multiple of cache.heads: {H} and {K} "
            f"(xq {list(xq.shape)})"
        )
    type_code("attention", "out", out, {cache.dtype.name: code})
    check_shape("attention", "out", out, xq._shape)
    xq_at, out_at = dense("attention", "xq", xq), output("attention", out)
    keys_at = dense("attention", "cache.keys", cache.keys)
    values_at = dense("attention", "cache.values", cache.values)
    if out._size == 0:
        return
    check_apart("attention", out, out_at, xq_at, xq.nbytes)
    check_apart("attention", out, out_at, keys_at, cache.keys.nbytes)
    check_apart("attention", out, out_at, values_at, cache.values.nbytes)
    keys, values, scale = pointer(keys_at), pointer(values_at), _LOG2_E / math.sqrt(h)
    rows = max(1, _CALL_MULTIPLY_ADDS // (2 * H * h * (start_pos + T)))
    for t in range(0, T, rows):
        count, offset = min(rows, T - t), t * H * h * xq._dtype.itemsize
        # Enough for any position of the cache, so that a recorded call can be made again at each.
        last = cache.positions - count
        wanted = lib.attention_scratch_bytes(count, last, H, K, h, code, threads)
        lib.attention(
            pointer(xq_at + offset), keys, values, pointer(out_at + offset), scratch(wanted),
            count, start_pos + t, H, K, h, cache.capacity, code, scale, threads,
        )  # fmt: skip
