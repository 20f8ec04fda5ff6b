"""Ops that only attention needs."""

from typing import Literal

from .. import native, native_attention
from ..dtype import complex64
from ..errors import DTypeError, ShapeError, TensorError
from ..key_value_cache import GROUP_POSITIONS, KeyValueCache
from ..layout import check_slice, checked_ints
from ..tensor import Tensor
from .support import check_float, kernel_dtype, kernel_operand


def repeat_heads(x: Tensor, repeats: int) -> Tensor:
    """Repeat each key or value head, so that there is one for every query head.

    out[s, k * G + g, :] = x[s, k, :],  g in [0, G)

    Args:
        x: a tensor [S, K, h] of any dtype.
        repeats: G, how many query heads share a key/value head.

    Returns:
        A tensor [S, H, h] with H = K * G; `x` itself if G is 1.

    Raises:
        ShapeError: not three dimensions, or G below 1.

    Source: `repeat_kv` of meta-llama/llama-models, models/llama3/model.py.
    """
    if x.ndim != 3:
        raise ShapeError(f"[repeat_heads] ndim must equal 3: {x.ndim} (shape {list(x.shape)})")
    repeats = checked_ints("repeat_heads", "repeats", (repeats,))[0]
    if repeats < 1:
        raise ShapeError(f"[repeat_heads] repeats must be >= 1: {repeats}")
    if repeats == 1:
        return x
    S, K, h = x.shape
    result = Tensor._empty((S, K, repeats, h), x.dtype)
    result.bits()[...] = x.bits()[:, :, None, :]
    return result.reshape(S, K * repeats, h)


def rotary_embedding(
    x: Tensor, frequencies: Tensor, pairs: Literal["interleaved", "halves"] = "interleaved"
) -> Tensor:
    """Turn pairs of elements by the angle of their position.

    out[t, n, 2j] + i out[t, n, 2j + 1] = (a + i b) * frequencies[t, j], in float32, rounded once

    `a` and `b` are x[t, n, 2j] and x[t, n, 2j + 1] for interleaved pairs, as Meta's weights make
    them, and x[t, n, j] and x[t, n, j + h / 2] for halves. Hugging Face's files have the rows of wq
    and wk in another order, so that the pairs of a head come out in its two halves. They are put
    side by side here, and no weight is moved. The result is interleaved either way: all that
    follows has the same bits for both layouts of the same weights.

    The same bits as `multiply` gives for the pairs read as complex numbers.

    Args:
        x: a real floating-point tensor [T, heads, h], queries or keys.
        frequencies: a complex64 tensor [T, h / 2], cos + i sin for each position and pair.
        pairs: which elements of `x` make a pair.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        DTypeError: not floating point, or frequencies that are not complex64.
        ShapeError: the sizes do not fit together.
        TensorError: an unknown kind of pairs.

    Source: Su et al., RoFormer, 2021; `apply_rotary_emb` of meta-llama/llama-models; `permute` of
    transformers, convert_llama_weights_to_hf.py.
    """
    if pairs not in ("interleaved", "halves"):
        raise TensorError(
            f"[rotary_embedding] pairs must be 'interleaved' or 'halves': {ascii(pairs)[:80]}"
        )
    check_float("rotary_embedding", x)
    if frequencies._dtype is not complex64:
        raise DTypeError(
            f"[rotary_embedding] frequencies.dtype must equal complex64: {frequencies.dtype}"
        )
    if len(x._shape) != 3:
        raise ShapeError(
            f"[rotary_embedding] x.ndim must equal 3: {x.ndim} (shape {list(x.shape)})"
        )
    T, _, h = x._shape
    if h % 2 or frequencies._shape != (T, h // 2):
        raise ShapeError(
            f"[rotary_embedding] frequencies.shape must equal (x.shape[0], x.shape[2] / 2): "
            f"{list(frequencies.shape)} != [{T}, {h / 2:g}] (x {list(x.shape)})"
        )
    result = Tensor._empty(x._shape, kernel_dtype(x._dtype))
    native.rotary(kernel_operand(x), frequencies.contiguous(), result, pairs == "halves")
    return result if result._dtype is x._dtype else result.to(x._dtype)


def write_cache(cache: KeyValueCache, start_pos: int, xk: Tensor, xv: Tensor) -> None:
    """Write the keys and values of new positions into a cache.

    Args:
        cache: of K heads of size h.
        start_pos: position of the first new token.
        xk: rotated keys [T, K, h] in the dtype of the cache.
        xv: values [T, K, h], likewise.

    Raises:
        ShapeError: sizes that are not the cache's, or positions that it does not have.
        DTypeError: another dtype.
    """
    start_pos = checked_ints("write_cache", "start_pos", (start_pos,))[0]
    native_attention.write_cache(cache, start_pos, xk.contiguous(), xv.contiguous())


def read_cache(cache: KeyValueCache, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Copy the keys and values of positions `start <= s < stop` out of a cache.

    Args:
        cache: of K heads of size h; the positions have been written.
        start: at least 0.
        stop: at most `cache.positions`; nothing is clamped.

    Returns:
        The keys and the values, tensors [stop - start, K, h] each.

    Raises:
        IndexOutOfRangeError: `0 <= start <= stop <= cache.positions` does not hold.
    """
    start, stop = checked_ints("read_cache", "start and stop", (start, stop))
    check_slice("read_cache", start, stop, cache.positions)
    K, h = cache.heads, cache.head_dim
    keys, values = (Tensor._empty((stop - start, K, h), cache.dtype) for _ in range(2))
    values.bits()[...] = cache.values.bits()[:, start:stop].swapaxes(0, 1)
    first, last = start // GROUP_POSITIONS, -(-stop // GROUP_POSITIONS)
    # [K, groups, words, 16, in a word] -> [groups, 16, K, words, in a word] -> [positions, K, h]
    groups = cache.keys.bits()[:, first:last].transpose(1, 3, 0, 2, 4).reshape(-1, K, h)
    skipped = first * GROUP_POSITIONS
    keys.bits()[...] = groups[start - skipped : stop - skipped]
    return keys, values


def attention(xq: Tensor, cache: KeyValueCache, start_pos: int) -> Tensor:
    """Mix the cached values of all positions that each token may see, without a matrix of scores.

    out[t, i] = sum over s <= start_pos + t of softmax over s of (xq[t, i] . k[s, j] / sqrt(h))
    * v[s, j], j = i // G, in float32, rounded once

    The order of every sum is fixed by the positions (see `csrc/kernels.h`): the same bits for any
    way to cut the tokens into calls and for any number of threads.

    Args:
        xq: rotated queries [T, H, h] in the dtype of the cache, H a multiple of its K heads.
        cache: the positions below start_pos + T have been written.
        start_pos: position of the first token.

    Returns:
        A tensor [T, H, h] in the dtype of `xq`.

    Raises:
        ShapeError: the sizes do not fit together, or the cache does not have the positions.
        DTypeError: another dtype than that of the cache.

    Source: Dao et al., FlashAttention, 2022, for the merging of blocks; Ainslie et al., GQA, 2023.
    """
    start_pos = checked_ints("attention", "start_pos", (start_pos,))[0]
    result = Tensor._empty(xq._shape, xq._dtype)
    native_attention.attention(xq.contiguous(), cache, start_pos, result)
    return result
