"""Ops that are used only by attention layers."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .. import kernels
from ..checks import KERNEL_DTYPES, describe_operands, kernel_operand
from ..dtype import DType, complex64, float32
from ..errors import DTypeError, ShapeError, TensorError
from ..kernels import MULTIPLY_ADDS_PER_CALL, ffi, lib
from ..key_value_cache import CACHE_Q8_0, KeyValueCache, Spans
from ..layout import check_slice, checked_ints
from ..op import op, op_that_changes
from ..tensor import Tensor, allocate


@op
def repeat_heads(x: Tensor, repeats: int) -> Tensor:
    """Repeat each key or value head, so that every query head has its own copy.

    out[s, k * G + g, :] = x[s, k, :],  g in [0, G)

    Args:
        x: A tensor [S, K, h] of any dtype.
        repeats: G, the number of query heads per key/value head.

    Returns:
        A tensor [S, H, h] with H = K * G, or `x` itself if G is 1.

    Raises:
        ShapeError: If `x` does not have three dimensions, or if G is less than 1.

    Source: `repeat_kv` in meta-llama/llama-models, models/llama3/model.py.
    """
    if x.ndim != 3:
        raise ShapeError(
            f"[repeat_heads] ndim must equal 3: {x.ndim} (shape {list(x.shape)})"
        )
    repeats = checked_ints("repeat_heads", "repeats", (repeats,))[0]
    if repeats < 1:
        raise ShapeError(f"[repeat_heads] repeats must be >= 1: {repeats}")
    if repeats == 1:
        return x
    S, K, h = x.shape
    result = allocate((S, K, repeats, h), x.dtype)
    result.bits()[...] = x.bits()[:, :, None, :]
    return result.reshape(S, K * repeats, h)


@op
def rotary_embedding(
    x: Tensor,
    rotations: Tensor,
    pairs: Literal["interleaved", "halves"] = "interleaved",
) -> Tensor:
    """Rotate pairs of elements by an angle that depends on the token's position.

    out[t, n, 2j] + i out[t, n, 2j + 1] = (a + i b) * rotations[t, j], in float32,
    rounded once

    If the pairs are "interleaved", as in Meta's weights, `a` and `b` are x[t, n, 2j] and
    x[t, n, 2j + 1]. If they are "halves", as in Hugging Face's weights, in which the rows
    of wq and wk have another order, they are x[t, n, j] and x[t, n, j + h / 2]. The
    result is interleaved in both cases, so all later results are bit-identical for both
    layouts, without reordering the weights. The products are bit-identical to `multiply`
    with complex numbers.

    If the rotations have fewer pairs than a head, only the first elements of each head
    are rotated.

    Args:
        x: A real floating-point tensor [T, heads, h] of queries or keys.
        rotations: A complex64 tensor [T, r / 2] with the value cos + i sin for each
            position and each pair among the first r <= h elements of a head.
        pairs: Which elements of `x` form a pair, "interleaved" or "halves".

    Returns:
        A tensor with the shape and dtype of `x`.

    Raises:
        DTypeError: If `x` is not floating point, or if the rotations are not complex64.
        ShapeError: If the sizes are incompatible.
        TensorError: If the value of `pairs` is unknown.

    Source: Su et al., RoFormer, 2021; `apply_rotary_emb` in meta-llama/llama-models;
    `permute` in transformers, convert_llama_weights_to_hf.py.
    """
    if not isinstance(pairs, str) or pairs not in ("interleaved", "halves"):
        raise TensorError(
            "[rotary_embedding] pairs must be 'interleaved' or 'halves': "
            f"{ascii(pairs)[:80]}"
        )
    operand = kernel_operand("rotary_embedding", x)
    if rotations._dtype is not complex64:
        raise DTypeError(
            f"[rotary_embedding] rotations.dtype must equal complex64: {rotations.dtype}"
        )
    if len(x._shape) != 3:
        raise ShapeError(
            f"[rotary_embedding] x.ndim must equal 3: {x.ndim} (shape {list(x.shape)})"
        )
    T, heads, h = x._shape
    rotary_size = 2 * rotations._shape[-1] if rotations._shape else 0
    if (
        h % 2
        or rotary_size > h
        or (rotary_size == 0) != (h == 0)
        or rotations._shape != (T, rotary_size // 2)
    ):
        raise ShapeError(
            "[rotary_embedding] rotations.shape must equal (x.shape[0], x.shape[2] / "
            f"2): {list(rotations.shape)} != [{T}, {h / 2:g}] (x {list(x.shape)})"
        )
    table = rotations if rotations._pointer is not None else rotations.contiguous()
    if rotary_size < h:  # the kernel processes whole heads
        whole = operand
        operand = allocate((T, heads, rotary_size), operand._dtype)
        operand.bits()[...] = whole.bits()[..., :rotary_size]
    result = allocate(operand._shape, operand._dtype)
    if result._size:
        lib.rotary(
            result._pointer,
            operand._pointer,
            table._pointer,
            T,
            heads,
            rotary_size,
            pairs == "halves",
            operand._dtype.code,
            kernels.threads,
        )
    if rotary_size < h:
        rotated = result
        result = allocate(x._shape, operand._dtype)
        result.bits()[..., :rotary_size] = rotated.bits()
        result.bits()[..., rotary_size:] = whole.bits()[..., rotary_size:]
    return result if result._dtype is x._dtype else result.to(x._dtype)


def _written_rows(arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    if isinstance(arguments["start_pos"], Spans):
        return arguments["xk"], arguments["xv"]
    start_pos = checked_ints("write_cache", "start_pos", (arguments["start_pos"],))[0]
    return read_cache(arguments["cache"], start_pos, start_pos + arguments["xk"].shape[0])


@op_that_changes(_written_rows)
def write_cache(
    cache: KeyValueCache, start_pos: int | Spans, xk: Tensor, xv: Tensor
) -> None:
    """Write the keys and values of new tokens to a cache.

    keys[start_pos + t, k, :] = xk[t, k, :], values[start_pos + t, k, :] = xv[t, k, :]

    Args:
        cache: A cache with K heads of size h.
        start_pos: The position of the first new token, or a `Spans` object for several
            sequences.
        xk: Rotated keys [T, K, h] with the dtype of the cache, or bfloat16 or float32 if
            the cache is in q8_0.
        xv: Values [T, K, h] with the dtype of the keys.

    Raises:
        ShapeError: If the sizes do not match the cache, if its positions are exceeded, or
            if it is a ring that is too short for the tokens.
        DTypeError: If a dtype differs from the cache's dtype.
        TensorError: If a tensor shares memory with the cache.
    """
    parts = _checked_parts("write_cache", "xk", xk, cache, start_pos)
    if cache.ring_blocks is not None:
        _check_ring("write_cache", cache, parts, window=1)
    _, K, h = xk._shape
    if cache.heads != K or xv._shape != xk._shape:
        raise ShapeError(
            f"[write_cache] xk.shape and xv.shape must equal [T, {cache.heads}, "
            f"{cache.head_dim}]: {describe_operands(('xk', xk), ('xv', xv))}"
        )
    if xv._dtype is not xk._dtype:
        raise DTypeError(f"[write_cache] xv.dtype must equal {xk.dtype}: {xv.dtype}")
    for x in (cache.keys, cache.values):
        if x._storage is xk._storage or x._storage is xv._storage:
            raise TensorError(
                "[write_cache] xk and xv must not share memory with the cache"
            )
    if xk._pointer is None or xv._pointer is None:
        xk = xk.contiguous()
        xv = xv.contiguous()
    threads = kernels.threads
    code = xk._dtype.code
    cache_code = cache.dtype.code
    for row, count, first, _, blocks in parts:
        lib.write_cache(
            cache.keys._pointer,
            cache.values._pointer,
            _row_pointer(xk, row) if row else xk._pointer,
            _row_pointer(xv, row) if row else xv._pointer,
            blocks,
            count,
            first,
            K,
            h,
            cache.capacity,
            code,
            cache_code,
            threads,
        )


def _row_pointer(x: Tensor, row: int) -> Any:
    """Return the address of a row of a contiguous tensor."""
    return kernels.pointer(x.data_pointer + row * x.strides[0])


def _checked_parts(
    op: str, label: str, x: Tensor, cache: KeyValueCache, start_pos: int | Spans
) -> Sequence[tuple[int, int, int, int, Any]]:
    """Check a tensor [T, heads, h] and the cache positions of its tokens.

    For each sequence, return the four numbers of `Spans.parts` and a C array of blocks.
    """
    is_quantized = cache.dtype is CACHE_Q8_0
    if not (x._dtype in KERNEL_DTYPES if is_quantized else x._dtype is cache.dtype):
        if is_quantized:
            raise DTypeError(
                f"[{op}] {label}.dtype must be bfloat16 or float32 for a cache in "
                f"{cache.dtype}: {x.dtype}"
            )
        dtypes = f"{x.dtype} != {cache.dtype} ({describe_operands((label, x))})"
        raise DTypeError(f"[{op}] {label}.dtype must equal cache.dtype: {dtypes}")
    if len(x._shape) != 3 or x._shape[2] != cache.head_dim:
        raise ShapeError(
            f"[{op}] {label}.shape must equal [T, heads, {cache.head_dim}]: "
            f"{list(x.shape)}"
        )
    T = x._shape[0]
    if isinstance(start_pos, Spans):
        stored = min(cache.positions, cache.capacity)
        if start_pos.tokens != T or start_pos.capacity > stored:
            raise ShapeError(
                f"[{op}] start_pos must be of {label}.shape[0] tokens and at most "
                f"cache.positions: {start_pos.tokens} and {start_pos.capacity}, "
                f"{stored} ({describe_operands((label, x))})"
            )
        return start_pos._kernel_parts
    if type(start_pos) is not int:
        start_pos = checked_ints(op, "start_pos", (start_pos,))[0]
    if not 0 <= start_pos <= start_pos + T <= cache.positions:
        raise ShapeError(
            f"[{op}] start_pos and start_pos + T must be in [0, cache.positions]: "
            f"{start_pos} and {start_pos + T}, {cache.positions} "
            f"({describe_operands((label, x))})"
        )
    return ((0, T, start_pos, cache.positions, cache._places),)


def _check_ring(
    op: str,
    cache: KeyValueCache,
    parts: Sequence[tuple[int, int, int, int, Any]],
    window: int | None,
) -> None:
    """Check that a ring contains all positions that the tokens of a call see.

    Spans contain the places of their blocks, so they do not use the cache as a ring.
    """
    for _, tokens, first, _, places in parts:
        if places != cache._places or not tokens:
            continue
        begin = 0 if window is None else max(0, first + 1 - window)
        if begin < cache.first_kept(first + tokens):
            raise ShapeError(
                f"[{op}] the first position seen must be >= the first position in the "
                f"ring: {begin}, {cache.first_kept(first + tokens)}"
            )


@op
def read_cache(cache: KeyValueCache, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Copy the keys and values at positions `start <= s < stop` from a cache.

    Args:
        cache: A cache with K heads of size h, in which these positions have been written.
            If it is a ring, later positions have not replaced them.
        start: The first position, at least 0.
        stop: The end of the range, at most `cache.positions`. It is not clamped.

    Returns:
        The keys and the values, each a tensor [stop - start, K, h] with the dtype of the
        cache, or of the exact elements in float32 if the cache is in q8_0.

    Raises:
        IndexOutOfRangeError: Unless `0 <= start <= stop <= cache.positions`.
        ShapeError: If the cache is a ring that is too short for the range.
    """
    start, stop = checked_ints("read_cache", "start and stop", (start, stop))
    check_slice("read_cache", start, stop, cache.positions)
    if start < min(stop, cache.first_kept(stop)):
        raise ShapeError(
            "[read_cache] start must be >= the first position in the ring: "
            f"{start}, {cache.first_kept(stop)}"
        )
    dtype = cache.dtype if isinstance(cache.dtype, DType) else float32
    shape = (stop - start, cache.heads, cache.head_dim)
    keys, values = (allocate(shape, dtype) for _ in range(2))
    for x, rows in zip((keys, values), cache.rows(start, stop), strict=True):
        x.bits()[...] = rows.view(dtype.bits_dtype)
    return keys, values


@op
def attention(
    xq: Tensor,
    cache: KeyValueCache,
    start_pos: int | Spans,
    divisor: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Compute causal grouped-query attention over cached keys and values.

    out[t, i] = sum over s <= start_pos + t of softmax over s of (xq[t, i] . k[s, j] /
    sqrt(h))
    * v[s, j], j = i // G, in float32, rounded once

    The result is bit-identical to `matmul`, `multiply` by 1 / sqrt(h), `softmax` and
    `matmul` with the values in float32. It does not depend on how tokens are divided into
    calls, or on the number of threads. With a window, the positions before it are not
    read, and the sums keep the order of the positions in the sequence. If the cache is in
    q8_0, the queries and the elements of the cache are widened to float32, exactly.

    The maximum of a softmax with a sink includes the sink. The exponential of position s
    is added to lane s mod 16 of their sum, in the order of positions. That of a sink is
    the first addend of lane 0.

    Args:
        xq: Rotated queries [T, H, h] with the dtype of the cache, or bfloat16 or float32
            if the cache is in q8_0. H must be a multiple of K, the number of heads in the
            cache.
        cache: The cache, in which all positions below start_pos + T have been written.
        start_pos: The position of the first token, or a `Spans` object for several
            sequences, which do not attend to each other.
        divisor: A positive number that replaces sqrt(h) in the formula.
        window: The number of positions that a token sees: itself and the positions
            before it. None for all positions.
        sinks: A float32 tensor [H] of scores, one per head, that take part in the softmax
            but have no value, so that the weights of a token sum to less than 1.
        soft_cap: A positive number that limits the divided scores, before the sinks are
            added: soft_cap * tanh(score / soft_cap).

    Returns:
        A tensor [T, H, h] with the dtype of `xq`.

    Raises:
        ShapeError: If the sizes are incompatible, if the cache has too few positions, or
            if it is a ring that does not contain all positions that the tokens see.
        TensorError: If the divisor, the window or the soft cap is not a positive number.
        DTypeError: If the dtype differs from the cache's dtype, or the sinks are not
            float32.

    Source: Vaswani et al., Attention Is All You Need, 2017; Ainslie et al., GQA, 2023;
    Beltagy et al., Longformer, 2020 (windows); Xiao et al., Efficient Streaming Language
    Models with Attention Sinks, 2023; Gemma Team, Gemma 2, 2024 (soft caps).
    """
    parts = _checked_parts("attention", "xq", xq, cache, start_pos)
    _, H, h = xq._shape
    K = cache.heads
    if H % (K or 1):
        counts = f"{H} and {K} ({describe_operands(('xq', xq))})"
        raise ShapeError(
            f"[attention] xq.shape[1] must be a multiple of cache.heads: {counts}"
        )
    if xq._pointer is None:
        xq = xq.contiguous()
    for label, number in (("divisor", divisor), ("soft_cap", soft_cap)):
        if number is not None and not (type(number) is float and 0 < number < math.inf):
            raise TensorError(
                f"[attention] {label} must be a positive float: {ascii(number)[:80]}"
            )
    if window is not None and not (type(window) is int and 0 < window <= sys.maxsize):
        raise TensorError(
            f"[attention] window must be a whole number >= 1: {ascii(window)[:80]}"
        )
    sink_scores = ffi.NULL
    if sinks is not None:
        sinks = _checked_sinks(sinks, xq)
        sink_scores = kernels.pointer(sinks._pointer)
    if cache.ring_blocks is not None:
        _check_ring("attention", cache, parts, window)
    result = allocate(xq._shape, xq._dtype)
    if not result._size:
        return result
    threads = kernels.threads
    code = xq._dtype.code
    cache_code = cache.dtype.code
    scale = 1 / (divisor or math.sqrt(h))
    for row, tokens, first, end, blocks in parts:
        most_seen = min(first + tokens, window or sys.maxsize)
        step = MULTIPLY_ADDS_PER_CALL // (2 * H * h * most_seen) or 1
        while tokens:
            count = step if step < tokens else tokens
            # The size is sufficient for all positions of the sequence, so that only the
            # first call allocates memory.
            most = lib.attention_scratch_bytes(
                count, end - count, H, K, h, window or 0, cache_code, threads
            )
            lib.attention(
                _row_pointer(result, row) if row else result._pointer,
                kernels.scratch(most),
                _row_pointer(xq, row) if row else xq._pointer,
                cache.keys._pointer,
                cache.values._pointer,
                blocks,
                sink_scores,
                count,
                first,
                H,
                K,
                h,
                cache.capacity,
                window or 0,
                scale,
                soft_cap or 0.0,
                code,
                cache_code,
                threads,
            )
            row = row + count
            first = first + count
            tokens = tokens - count
    return result


def _checked_sinks(sinks: Tensor, xq: Tensor) -> Tensor:
    """Return contiguous sinks, one float32 score for each query head."""
    if sinks._dtype is not float32:
        raise DTypeError(f"[attention] sinks.dtype must equal float32: {sinks.dtype}")
    if sinks._shape != xq._shape[1:2]:
        raise ShapeError(
            f"[attention] sinks.shape must equal [xq.shape[1]]: {list(sinks.shape)} != "
            f"[{xq.shape[1]}] ({describe_operands(('xq', xq))})"
        )
    return sinks if sinks._pointer is not None else sinks.contiguous()
