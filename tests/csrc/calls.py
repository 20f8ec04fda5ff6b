"""The kernels, called on arrays: sizes and types come from the arrays, and nothing is
checked.

This is the one place of these tests that knows where the library is loaded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from src import ml
from src.ml.dtype import from_numpy_dtype
from src.ml.kernels import (
    available_isas,
    build_info,
    ffi,
    get_num_threads,
    lib,
    set_isa,
    set_num_threads,
)

__all__ = [
    "available_isas",
    "build_info",
    "ffi",
    "get_num_threads",
    "lib",
    "set_isa",
    "set_num_threads",
]

Array = np.ndarray[Any, Any]
# A weight, or a tensor: its memory is that of an array.
Operand = Any
_GROUP: int = lib.LANES
Q8_0 = ml.CACHE_Q8_0
ACTIVATIONS = {"int16": lib.ACTIVATIONS_INT16, "int8": lib.ACTIVATIONS_INT8}
_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


def scratch(nbytes: int) -> Any:
    """Return memory that a kernel may use, with whatever is in it."""
    return _uncleared("char[]", nbytes)


def pointer(x: Operand | None) -> Any:
    """Return where the elements of an array or tensor are; NULL where there are none."""
    if x is None or array_of(x).size == 0:
        return ffi.NULL
    return ffi.cast("void *", array_of(x).ctypes.data)


def array_of(x: Operand) -> Array:
    return x if isinstance(x, np.ndarray) else x.numpy()


def code(x: Operand) -> int:
    """Return the number of an array's type in C."""
    return from_numpy_dtype(array_of(x).dtype).code


def weight_fields(weight: Operand) -> tuple[Any, ...]:
    if not isinstance(weight, ml.QuantizedTensor):
        return pointer(weight), ffi.NULL, ffi.NULL, ffi.NULL, 0.0, code(weight), 0
    nested = weight.nested
    row = weight.dtype
    # A block that holds its scales is where they are.
    scales = weight.codes if row.bytes_with_scales else weight.scales
    parts = pointer(weight.codes), pointer(scales)
    activations = ACTIVATIONS[weight.activations]
    if nested is None:
        return *parts, ffi.NULL, ffi.NULL, 0.0, row.code, activations
    return (
        *parts,
        pointer(nested.absmax),
        pointer(nested.code),
        nested.offset,
        row.double_code,
        activations,
    )


def linear(
    x: Operand,
    weights: Sequence[Operand],
    outs: Sequence[Operand],
    biases: Sequence[Operand | None] = (),
) -> None:
    """outs[p] = x . weights[p], + biases[p]."""
    threads = get_num_threads()
    columns = array_of(x).shape[1]
    parts = [
        (
            pointer(out),
            weight_fields(weight),
            pointer(bias),
            weight.shape[0],
            0 if bias is None else code(bias),
        )
        for weight, out, bias in zip(
            weights, outs, biases or [None] * len(outs), strict=True
        )
    ]
    lib.linear(
        ffi.new("LinearPart[]", parts),
        scratch(lib.product_scratch_bytes(columns, threads)),
        pointer(x),
        len(parts),
        len(array_of(x)),
        columns,
        code(x),
        code(outs[0]),
        threads,
    )


def linear_reference(
    x: Array, weight: Array, out: Array, bias: Array | None = None
) -> None:
    lib.linear_reference(*map(pointer, (out, x, weight, bias)), *x.shape, len(weight))


def q4_k_reference(x: Array, codes: Array, out: Array, activations: str) -> None:
    """out[t, o] = x[t] . row o of the weight, whose blocks are the codes; x is bfloat16."""
    T, columns = x.shape
    arguments = (
        ffi.cast("uint16_t *", pointer(x)),
        ffi.cast("uint8_t *", pointer(codes)),
    )
    kind = ACTIVATIONS[activations]
    lib.q4_k_reference(pointer(out), *arguments, T, columns, out.shape[1], kind)


def rms_norm_reference(x: Array, weight: Array, eps: float, out: Array) -> None:
    lib.rms_norm_reference(pointer(out), pointer(x), pointer(weight), *x.shape, eps)


def rotary_reference(
    x: Array, frequencies: Array, out: Array, halves: bool = False
) -> None:
    lib.rotary_reference(pointer(out), pointer(x), pointer(frequencies), *x.shape, halves)


@dataclass(frozen=True)
class Limits:
    """The optional arguments of attention: none of them by default."""

    window: int = 0
    sinks: Array | None = None
    soft_cap: float = 0.0


NO_LIMITS = Limits()


def attention_reference(
    xq: Array,
    keys: Array,
    values: Array,
    start_pos: int,
    weights: Array,
    out: Array,
    limits: Limits = NO_LIMITS,
) -> None:
    """Attend to keys and values [S, K, h]; `weights` is scratch for S positions."""
    T, H, h = xq.shape
    K = keys.shape[1]
    lib.attention_reference(
        pointer(out), pointer(weights), pointer(xq), pointer(keys), pointer(values),
        pointer(limits.sinks), T, start_pos, H, K, h, limits.window,
        1 / math.sqrt(h or 1), limits.soft_cap,
    )  # fmt: skip


def batched_matmul(a: Operand, b: Operand, out: Operand) -> None:
    """out[i] = a[i] . b[i], each row times each row."""
    a = array_of(a)
    b = array_of(b)
    threads = get_num_threads()
    (batch, m, k) = a.shape
    n = b.shape[1]
    lib.batched_matmul(
        pointer(out), scratch(lib.matmul_scratch_bytes(threads)), pointer(a), pointer(b),
        batch, m, n, k, *a.strides, *b.strides, code(a), code(out), threads,
    )  # fmt: skip


def softmax(x: Operand, out: Operand) -> None:
    lib.softmax(
        pointer(out),
        pointer(x),
        *array_of(x).shape,
        code(x),
        code(out),
        get_num_threads(),
    )


def rms_norm(x: Operand, weight: Operand, eps: float, out: Operand) -> None:
    lib.rms_norm(
        pointer(out),
        pointer(x),
        pointer(weight),
        *array_of(x).shape,
        eps,
        code(x),
        code(weight),
        code(out),
        get_num_threads(),
    )


def rotary(x: Operand, frequencies: Operand, out: Operand, halves: bool = False) -> None:
    lib.rotary(
        pointer(out),
        pointer(x),
        pointer(frequencies),
        *array_of(x).shape,
        halves,
        code(x),
        get_num_threads(),
    )


def elementwise(op: str, a: Operand, b: Operand | None, out: Operand) -> None:
    """out[i] = op(a[i], b[i]); the op is add, multiply, silu (of a alone), swiglu, geglu
    or clamped_swiglu.
    """
    kind = getattr(lib, f"OP_{op.upper()}")
    size = array_of(out).size
    lib.elementwise(
        pointer(out), pointer(a), pointer(b), size, kind, code(out), get_num_threads()
    )


def soft_cap(x: Operand, cap: float, out: Operand) -> None:
    size = array_of(x).size
    lib.soft_cap(pointer(out), pointer(x), size, cap, code(x), get_num_threads())


@dataclass(frozen=True)
class LowRank:
    """The matrices of an adapter, and the places of its tokens in `rows`."""

    a: Operand  # [r, in]
    b: Operand  # [r, out], by columns
    factor: float
    first: int
    count: int


def low_rank_products(
    x: Operand, rows: Operand, adapters: Sequence[LowRank], low: Operand
) -> None:
    """Compute low = A x of the tokens of each adapter, one after the other."""
    products = []
    place = 0
    for each in adapters:
        rank = len(each.a)
        products.append(
            (pointer(each.a), rank, each.first, each.count, place, code(each.a))
        )
        place += rank * each.count
    lib.low_rank_products(
        pointer(low),
        pointer(x),
        pointer(rows),
        ffi.new("LowRankProduct[]", products),
        len(products),
        x.shape[-1],
        code(x),
        get_num_threads(),
    )


def add_low_rank_changes(
    out: Operand,
    rows: Operand,
    adapters: Sequence[LowRank],
    low: Operand,
    rounded: Operand | None = None,
) -> None:
    """Add factor * B low of the tokens of each adapter to a result, and round it."""
    changes = []
    place = 0
    for each in adapters:
        rank = len(each.b)
        fields = (rank, each.first, each.count, place, each.factor, code(each.b))
        changes.append((pointer(each.b), *fields))
        place += rank * each.count
    results = [
        (
            pointer(out),
            ffi.NULL if rounded is None else pointer(rounded),
            out.shape[-1],
            0,
            len(changes),
            0 if rounded is None else code(rounded),
        )
    ]
    lib.add_low_rank_changes(
        ffi.new("LowRankResult[]", results),
        1,
        ffi.new("LowRankChange[]", changes),
        pointer(low),
        pointer(rows),
        len(out),
        get_num_threads(),
    )


@dataclass(frozen=True)
class ExpertStack:
    """The same matrix [rows, columns] of some experts.

    `weights` has the bytes of their C structs, and `biases` the addresses of biases.
    """

    weights: Array
    biases: Array
    rows: int
    columns: int
    bias_code: int

    def matrix(self) -> Any:
        """Return the C `ExpertMatrix`."""
        fields = (self.rows, self.columns, self.bias_code)
        places = (pointer(self.weights), pointer(self.biases))
        return ffi.new("ExpertMatrix *", (*places, *fields))


def weight_bytes(weights: Sequence[Operand]) -> Array:
    """Return the C `Weight` structs of some weights, as bytes."""
    structs = ffi.new("Weight[]", [weight_fields(weight) for weight in weights])
    return np.frombuffer(ffi.buffer(structs), np.uint8).copy()


def expert_hidden(
    x: Operand,
    stacks: tuple[ExpertStack, ExpertStack],
    segments: Array,
    pairs: Array,
    A: int,
    out: Operand,
) -> None:
    """out[pair] = swiglu(gate x[pair / A], up x[pair / A]), by the expert of the pair."""
    gate, up = stacks
    panels = int(segments[-1, -1]) + 1
    threads = get_num_threads()
    lib.expert_hidden(
        pointer(out),
        scratch(lib.expert_scratch_bytes(gate.columns, panels, threads)),
        pointer(x),
        gate.matrix(),
        up.matrix(),
        pointer(segments),
        pointer(pairs),
        len(segments),
        panels,
        len(array_of(x)),
        A,
        lib.OP_SWIGLU,
        code(x),
        code(out),
        threads,
    )


def expert_outputs(
    hidden: Operand,
    weights: Operand,
    down: ExpertStack,
    segments: Array,
    pairs: Array,
    out: Operand,
) -> None:
    """out[t] = sum over its pairs of weights[pair] * (down hidden[pair])."""
    T, A = array_of(weights).shape
    panels = int(segments[-1, -1]) + 1
    threads = get_num_threads()
    lib.expert_outputs(
        pointer(out),
        scratch(lib.expert_scratch_bytes(down.columns, panels, threads)),
        pointer(hidden),
        pointer(weights),
        down.matrix(),
        pointer(segments),
        pointer(pairs),
        len(segments),
        panels,
        T,
        A,
        code(hidden),
        threads,
    )


def choose_experts(
    logits: Operand, values: Operand, experts: Operand, chosen: Operand
) -> None:
    """Choose the experts [T, A] with the largest logits [T, E], and their values."""
    T, E = array_of(logits).shape
    A = array_of(experts).shape[1]
    lib.choose_experts(
        pointer(experts), pointer(chosen), pointer(logits), pointer(values), T, E, A
    )


def argmax(x: Operand, out: Operand) -> None:
    lib.argmax(pointer(out), pointer(x), *array_of(x).shape, code(x), get_num_threads())


def convert(x: Operand, out: Operand) -> None:
    size = array_of(x).size
    lib.convert(pointer(out), pointer(x), size, code(x), code(out), get_num_threads())


def quantize(x: Operand, dtype: ml.BlockDType, codes: Operand, scales: Operand) -> int:
    """Compute codes and scales; return how many elements are not finite."""
    size = array_of(x).size
    return int(
        lib.quantize(
            pointer(codes), pointer(scales), pointer(x), size, code(x), dtype.code,
            get_num_threads(),
        )
    )  # fmt: skip


def get_rows(table: Operand, ids: Operand | None, out: Operand) -> int:
    """Pick rows, or take all elements; return how many spans have an id without a row."""
    T, V, D = (1, 1, table.size) if ids is None else (len(ids), *table.shape)
    return int(
        lib.get_rows(
            pointer(out),
            ffi.new("Weight *", weight_fields(table)),
            pointer(ids),
            T,
            V,
            D,
            code(out),
            get_num_threads(),
        )
    )


@dataclass
class Cache:
    """Keys [K, C / 16, words, 16, elements of a word] and values [K, C, h]."""

    keys: Array
    values: Array

    @property
    def sizes(self) -> tuple[int, int, int]:
        K, C, h = self.values.shape
        return K, h, C


class CodedCache(Cache):
    """Keys and values [K, C / 16, bytes of a group], in q8_0."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        K, groups, nbytes = self.values.shape
        h = nbytes // _GROUP * Q8_0.block_size // Q8_0.block_bytes
        return K, h, groups * _GROUP


def coded_shape(positions: int, K: int, h: int) -> tuple[int, int, int]:
    """Return the shape of the keys and of the values in q8_0."""
    return K, -(-positions // _GROUP), _GROUP * Q8_0.bytes_of(h)


def cache_code(cache: Cache) -> int:
    return Q8_0.code if isinstance(cache, CodedCache) else code(cache.values)


def cache_shapes(
    positions: int, K: int, h: int, itemsize: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    C = -(-positions // _GROUP) * _GROUP
    return (K, C // _GROUP, h * itemsize // 4, _GROUP, 4 // itemsize), (K, C, h)


def write_cache(cache: Cache, start_pos: int, xk: Operand, xv: Operand) -> None:
    lib.write_cache(
        pointer(cache.keys), pointer(cache.values), pointer(xk), pointer(xv), ffi.NULL,
        len(array_of(xk)), start_pos, *cache.sizes, code(xk), cache_code(cache),
        get_num_threads(),
    )  # fmt: skip


def attention(
    xq: Operand,
    cache: Cache,
    start_pos: int,
    out: Operand,
    limits: Limits = NO_LIMITS,
) -> None:
    (T, H, h) = array_of(xq).shape
    threads = get_num_threads()
    kind = code(xq)
    K, _, C = cache.sizes
    scale = 1 / math.sqrt(h or 1)
    lib.attention(
        pointer(out),
        scratch(
            lib.attention_scratch_bytes(
                T, start_pos, H, K, h, limits.window, cache_code(cache), threads
            )
        ),
        pointer(xq),
        pointer(cache.keys),
        pointer(cache.values),
        ffi.NULL,
        pointer(limits.sinks),
        T,
        start_pos,
        H,
        K,
        h,
        C,
        limits.window,
        scale,
        limits.soft_cap,
        kind,
        cache_code(cache),
        threads,
    )


def probe_read(x: Operand, streams: int) -> int:
    """Return the exclusive or of the words of an array."""
    return int(lib.probe_read(pointer(x), array_of(x).nbytes, streams, get_num_threads()))


def probe_multiply_add(dtype: str, rounds: int) -> int:
    kind = getattr(ml, dtype).code
    return int(
        lib.probe_multiply_add(ffi.new("float *"), rounds, kind, get_num_threads())
    )
