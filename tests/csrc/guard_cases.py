"""One call of each kernel for any sizes, in every combination of types, in given memory.

A kernel of kernels.h that has no case here fails a test.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from src import ml

from . import calls
from .guard_pages import Memory
from .operands import PRODUCTS, Array, bf16, f8e4, f8e5, f16, f32, tensor
from .quantized_operands import FORMATS, whole_blocks

Sizes = tuple[int, ...]
Run = Callable[..., object]

# Nothing, and around the widths of vectors, of blocks of 32, 64 and 256 elements, and of
# words.
SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
FEW_SIZES = (0, 1, 2, 7, 17, 32, 33, 65)
# Of which a thorough run takes every combination, for kernels of three dimensions.
CROSSED_SIZES = (0, 1, 2, 3, 7, 16, 17, 32, 33, 65, 129)
QUICK_SHARE = 8  # an eighth of the variants for a size
ACTIVATIONS = (bf16, f32)
TYPES = (bf16, f16, f32, f8e4, f8e5)
NESTED_BLOCK: int = calls.lib.NESTED_BLOCK
NESTED_CODES: int = calls.lib.NESTED_CODES
Q4_K = ml.GGML_DTYPES[12]


class Int8(NamedTuple):
    """A kind of block-quantized weights, for activations of 8 bits."""

    kind: Any
    activations: str = "int8"


Variant = tuple[Any, ...]


def unchanged(_: Variant, sizes: Sizes) -> Sizes:
    return sizes


@dataclass(frozen=True)
class Case:
    """A kernel's call: run(memory, *variant, *sizes)."""

    run: Run  # makes the call
    variants: Sequence[Variant]  # the types, formats and operations
    dimensions: int  # how many sizes it takes
    long: Sequence[Sizes]  # sizes that reach more than one block, stretch, span or thread
    # Returns the given sizes, rounded up to those that a variant can have.
    fitting: Callable[[Variant, Sizes], Sizes] = unchanged
    # Plain loops: no vectors, blocks or threads, so that no code depends on two sizes.
    is_reference: bool = False

    @property
    def crossed(self) -> Sizes:
        """The sizes of which a thorough run takes every combination."""
        if self.is_reference:
            return ()
        return SIZES if self.dimensions < 3 else CROSSED_SIZES


def star(
    dimensions: int, sizes: Sequence[int], centres: Sequence[Sizes]
) -> Iterator[Sizes]:
    """Vary each dimension alone, the others as in one of the centres."""
    for centre, axis, size in product(centres, range(dimensions), sizes):
        yield (*centre[:axis], size, *centre[axis + 1 : dimensions])


def sizes_of(case: Case, level: str) -> list[Sizes]:
    """Return the sizes of a case: one, long, few (for memcheck), quick, or thorough."""
    if level == "one":
        return [(7, 33, 5)[: case.dimensions]]
    if level == "long":
        return list(case.long)
    if level == "few":
        return sorted(set(star(case.dimensions, FEW_SIZES, [(7, 33, 5)])))
    found = {*star(case.dimensions, SIZES, [(1, 1, 1), (7, 33, 5)]), *case.long}
    if level == "thorough":
        found |= set(product(case.crossed, repeat=case.dimensions))
    return sorted(found)


def calls_of(case: Case, level: str) -> Iterator[tuple[Variant, Sizes]]:
    """Yield the variant and sizes of each call, and no call twice.

    At the level "quick", each size takes its share of the variants.
    """
    every = min(QUICK_SHARE, len(case.variants)) if level == "quick" else 1
    yielded = set()
    for number, sizes in enumerate(sizes_of(case, level)):
        for index in range(number % every, len(case.variants), every):
            variant = case.variants[index]
            fitting = case.fitting(variant, sizes)
            if (index, fitting) not in yielded:
                yielded.add((index, fitting))
                yield variant, fitting


# ---- operands --------------------------------------------------------------------------

_NUMBERS = np.random.default_rng(0).standard_normal(2**16).astype(np.float32)
_NORMAL = {dtype: _NUMBERS.astype(dtype) for dtype in TYPES}
_BYTES = np.random.default_rng(1).integers(0, 256, 2**16).astype(np.uint8)


def filled(memory: Memory, shape: Sizes, dtype: Any) -> Array:
    """Make an array of normal numbers, or of any bytes."""
    array = memory.array(shape, dtype)
    flat = array.reshape(-1).view(f32) if array.dtype.kind == "c" else array.reshape(-1)
    given = _NORMAL[flat.dtype] if flat.dtype in _NORMAL else _BYTES.view(flat.dtype)
    flat[...] = (
        given[: flat.size] if flat.size <= given.size else np.resize(given, flat.size)
    )
    return array


def part(memory: Memory, count: int, dtype: Any) -> ml.Tensor:
    return tensor(filled(memory, (count,), dtype))


def weight_of(memory: Memory, shape: Sizes, kind: Any) -> Any:
    """Make a weight of normal numbers, or a block-quantized one of any codes."""
    if isinstance(kind, Int8):
        return weight_of(memory, shape, kind.kind).with_activations(kind.activations)
    if isinstance(kind, ml.BlockDType):
        nbytes = math.prod(shape) // kind.block_size * kind.block_bytes
        return ml.QuantizedTensor(kind, shape, part(memory, nbytes, np.uint8))
    if not isinstance(kind, tuple):
        return filled(memory, shape, kind)
    dtype, double = kind
    size = math.prod(shape)
    blocks = -(-size // dtype.block_size)
    codes = part(memory, -(-size // dtype.codes_per_item), dtype.codes.numpy_dtype)
    if not double:
        scales = part(memory, blocks, dtype.scales.numpy_dtype)
        return ml.QuantizedTensor(dtype, shape, codes, scales)
    nested = ml.NestedScales(
        part(memory, -(-blocks // NESTED_BLOCK), f32),
        part(memory, NESTED_CODES, f32),
        0.5,
    )
    return ml.QuantizedTensor(dtype, shape, codes, part(memory, blocks, np.uint8), nested)


def rows_apart(memory: Memory, shape: Sizes, dtype: Any) -> Array:
    """Make rows with gaps of three elements between them, and none after the last."""
    batch, rows, columns = shape
    step = columns + 3
    flat = filled(memory, (max(0, (batch * rows - 1) * step + columns),), dtype)
    strides = (rows * step * dtype.itemsize, step * dtype.itemsize, dtype.itemsize)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


# ---- calls -----------------------------------------------------------------------------


def run_linear(
    memory: Memory, x: Any, kind: Any, out: Any, T: int, columns: int, n: int
) -> None:
    """Multiply by two weights at once, of n rows and with a bias, and of two without."""
    calls.linear(
        filled(memory, (T, columns), x),
        [weight_of(memory, (rows, columns), kind) for rows in (n, 2)],
        [memory.array((T, rows), out) for rows in (n, 2)],
        [filled(memory, (n,), x), None],
    )


def fitting_linear(variant: Variant, sizes: Sizes) -> Sizes:
    """Round the columns up to whole blocks of the weight's format."""
    _, kind, _ = variant
    T, columns, n = sizes
    return T, whole_blocks(kind.kind if isinstance(kind, Int8) else kind, columns), n


def run_linear_reference(memory: Memory, T: int, columns: int, n: int) -> None:
    calls.linear_reference(
        filled(memory, (T, columns), f32), filled(memory, (n, columns), f32),
        memory.array((T, n), f32), filled(memory, (n,), f32),
    )  # fmt: skip


def run_q4_k_reference(
    memory: Memory, activations: str, T: int, blocks: int, n: int
) -> None:
    codes = filled(memory, (n, blocks * Q4_K.block_bytes), np.uint8)
    x = filled(memory, (T, blocks * Q4_K.block_size), bf16)
    calls.q4_k_reference(x, codes, memory.array((T, n), f32), activations)


def run_rms_norm_reference(memory: Memory, rows: int, D: int) -> None:
    x, weight = filled(memory, (rows, D), f32), filled(memory, (D,), f32)
    calls.rms_norm_reference(x, weight, 1e-5, memory.array((rows, D), f32))


def run_rotary_reference(
    memory: Memory, halves: bool, T: int, half: int, heads: int
) -> None:
    shape = (T, heads, 2 * half)
    turns = filled(memory, (T, half), np.complex64)
    calls.rotary_reference(
        filled(memory, shape, f32), turns, memory.array(shape, f32), halves
    )


def run_attention_reference(
    memory: Memory, is_limited: bool, T: int, start_pos: int, half: int
) -> None:
    S, K, G = start_pos + T, 2, 3
    keys, values = (filled(memory, (S, K, 2 * half), f32) for _ in range(2))
    xq, out = (
        filled(memory, (T, K * G, 2 * half), f32),
        memory.array((T, K * G, 2 * half), f32),
    )
    scratch = memory.array((S,), f32)
    limits = calls.Limits(max(1, S // 2), filled(memory, (K * G,), f32), 3.0)
    calls.attention_reference(
        xq,
        keys,
        values,
        start_pos,
        scratch,
        out,
        limits if is_limited else calls.NO_LIMITS,
    )


def run_batched_matmul(
    memory: Memory, types: Any, rows: Run, m: int, k: int, n: int
) -> None:
    a, b, out = types
    calls.batched_matmul(
        rows(memory, (2, m, k), a),
        rows(memory, (2, n, k), b),
        memory.array((2, m, n), out),
    )


def run_rms_norm(
    memory: Memory, x: Any, weight: Any, out: Any, rows: int, D: int
) -> None:
    shape = (rows, D)
    calls.rms_norm(
        filled(memory, shape, x),
        filled(memory, (D,), weight),
        1e-5,
        memory.array(shape, out),
    )


def run_rotary(
    memory: Memory, dtype: Any, halves: bool, T: int, half: int, heads: int
) -> None:
    shape = (T, heads, 2 * half)
    turns = filled(memory, (T, half), np.complex64)
    calls.rotary(filled(memory, shape, dtype), turns, memory.array(shape, dtype), halves)


def run_elementwise(memory: Memory, op: str, dtype: Any, n: int) -> None:
    a = filled(memory, (n,), dtype)
    b = filled(memory, (n,), dtype) if op != "silu" else None
    calls.elementwise(op, a, b, memory.array((n,), dtype))


def run_soft_cap(memory: Memory, dtype: Any, n: int) -> None:
    calls.soft_cap(filled(memory, (n,), dtype), 3.0, memory.array((n,), dtype))


def run_low_rank_products(
    memory: Memory, dtype: Any, matrix: Any, columns: int, rank: int
) -> None:
    T = 9
    x = filled(memory, (T, columns), dtype)
    a = filled(memory, (rank, columns), matrix)
    rows = memory.array((T,), np.intp)
    rows[...] = np.arange(T)[::-1]
    first = T // 3
    adapters = [
        calls.LowRank(a, a, 1.0, 0, first),
        calls.LowRank(a, a, 1.0, first, T - first),
    ]
    calls.low_rank_products(x, rows, adapters, memory.array((T, rank), np.float32))


def run_add_low_rank_changes(
    memory: Memory, matrix: Any, columns: int, rank: int
) -> None:
    T = 9
    b = filled(memory, (rank, columns), matrix)
    rows = memory.array((T,), np.intp)
    rows[...] = np.arange(T)[::-1]
    low = filled(memory, (T, rank), np.float32)
    adapters = [calls.LowRank(b, b, 0.5, 0, T)]
    out = filled(memory, (T, columns), np.float32)
    rounded = memory.array((T, columns), bf16)
    calls.add_low_rank_changes(out, rows, adapters, low, rounded)


_EXPERTS_OF_TOKENS = np.array([[0, 2], [1, 2], [0, 1], [0, 2], [0, 3]])


def expert_pairs(memory: Memory) -> tuple[Array, Array]:
    """Return the pairs of a token and an expert, sorted by expert, and their segments."""
    flat = _EXPERTS_OF_TOKENS.reshape(-1)
    pairs = memory.array(flat.shape, np.int32)
    pairs[...] = np.argsort(flat, kind="stable")
    counts = np.bincount(flat)
    segments = memory.array((len(counts), 4), np.intp)
    for expert, count in enumerate(counts):
        segments[expert] = expert, counts[:expert].sum(), count, expert
    return pairs, segments


def expert_stack(memory: Memory, shape: Sizes, kind: Any, bias: Any) -> calls.ExpertStack:
    """Make a matrix and a bias for each of four experts."""
    count = int(_EXPERTS_OF_TOKENS.max()) + 1
    structs = calls.weight_bytes([weight_of(memory, shape, kind) for _ in range(count)])
    weights = memory.array(structs.shape, np.uint8)
    weights[...] = structs
    biases = memory.array((count,), np.uintp)
    for expert in range(count):
        biases[expert] = filled(memory, shape[:1], bias).ctypes.data
    return calls.ExpertStack(
        weights, biases, *shape, bias_code=calls.code(np.empty(0, bias))
    )


def forget_addresses(*stacks: calls.ExpertStack) -> None:
    """Overwrite the addresses of weights and biases, which differ in each run."""
    for stack in stacks:
        stack.weights[...] = 0
        stack.biases[...] = 0


def run_expert_hidden(memory: Memory, x: Any, kind: Any, columns: int, n: int) -> None:
    pairs, segments = expert_pairs(memory)
    tokens, A = _EXPERTS_OF_TOKENS.shape
    gate = expert_stack(memory, (n, columns), kind, x)
    up = expert_stack(memory, (n, columns), kind, x)
    rows = filled(memory, (tokens, columns), x)
    out = memory.array((pairs.size, n), x)
    calls.expert_hidden(rows, (gate, up), segments, pairs, A, out)
    forget_addresses(gate, up)


def run_expert_outputs(memory: Memory, x: Any, kind: Any, columns: int, n: int) -> None:
    pairs, segments = expert_pairs(memory)
    down = expert_stack(memory, (n, columns), kind, x)
    hidden = filled(memory, (pairs.size, columns), x)
    weights = filled(memory, _EXPERTS_OF_TOKENS.shape, f32)
    out = memory.array((len(weights), n), f32)
    calls.expert_outputs(hidden, weights, down, segments, pairs, out)
    forget_addresses(down)


def run_choose_experts(memory: Memory, T: int, E: int) -> None:
    A = -(-E // 3)
    logits, values = (filled(memory, (T, E), f32) for _ in range(2))
    experts = memory.array((T, A), np.int32)
    calls.choose_experts(logits, values, experts, memory.array((T, A), f32))


def run_quantize(memory: Memory, dtype: Any, x: Any, n: int) -> None:
    codes, scales = (
        memory.array((-(-n // per_item),), part.numpy_dtype)
        for part, per_item in (
            (dtype.codes, dtype.codes_per_item),
            (dtype.scales, dtype.block_size),
        )
    )
    calls.quantize(filled(memory, (n,), x), dtype, codes, scales)


def run_get_rows(
    memory: Memory, kind: Any, out: Any, by_ids: bool, rows: int, columns: int
) -> None:
    table = weight_of(memory, (rows, columns), kind)
    if not by_ids or not rows:
        calls.get_rows(table, None, memory.array((rows, columns), out))
        return
    ids = memory.array((5,), np.int32)
    ids[...] = rows - 1, -1, 0, rows, rows // 2
    refused = calls.get_rows(table, ids, memory.array((5, columns), out))
    assert bool(refused) == bool(columns)


def fitting_get_rows(variant: Variant, sizes: Sizes) -> Sizes:
    """Round the columns up to whole blocks of the table's format."""
    kind, *_ = variant
    rows, columns = sizes
    return rows, whole_blocks(kind, columns)


def cache_in(memory: Memory, positions: int, K: int, h: int, dtype: Any) -> calls.Cache:
    if dtype is not calls.Q8_0:
        shapes = calls.cache_shapes(positions, K, h, dtype.itemsize)
        return calls.Cache(*(filled(memory, shape, dtype) for shape in shapes))
    shape = calls.coded_shape(positions, K, h)
    cache = calls.CodedCache(*(filled(memory, shape, np.uint8) for _ in range(2)))
    for x in (cache.keys, cache.values):
        scales = x[..., calls.lib.LANES * h :].view(np.float16)
        scales[...] = np.abs(np.sin(np.arange(scales.size))).reshape(scales.shape)
    return cache


def run_attention(
    memory: Memory,
    dtype: Any,
    cache_dtype: Any,
    heads: Sizes,
    is_limited: bool,
    T: int,
    positions: int,
    half: int,
) -> None:
    """Let T tokens follow `positions` - 1 others, so that one may be the first.

    Limited attention has a window, sinks and a soft cap.
    """
    (H, K) = heads
    start = max(0, positions - 1)
    h = whole_blocks(cache_dtype, 2 * half)
    cache = cache_in(memory, start + T, K, h, cache_dtype)
    shape = (T, H, h)
    out = memory.array(shape, dtype)
    xq = filled(memory, shape, dtype)
    limits = calls.Limits(positions // 2 + 1, filled(memory, (H,), f32), 3.0)
    calls.attention(xq, cache, start, out, limits if is_limited else calls.NO_LIMITS)


def run_write_cache(
    memory: Memory,
    dtype: Any,
    cache_dtype: Any,
    K: int,
    T: int,
    positions: int,
    half: int,
) -> None:
    start = max(0, positions - 1)
    h = whole_blocks(cache_dtype, 2 * half)
    cache = cache_in(memory, start + T, K, h, cache_dtype)
    new = (filled(memory, (T, K, h), dtype) for _ in range(2))
    calls.write_cache(cache, start, *new)


# ---- all of them -----------------------------------------------------------------------

_SAME = PRODUCTS[:3]  # of operands of one type
_QUANTIZED = [*FORMATS, *ml.GGML_DTYPES.values()]
_QUANTIZED_PRODUCTS = [(x, kind, out) for x, _, out in _SAME for kind in _QUANTIZED]
_INT8_PRODUCTS = [(bf16, Int8(kind), bf16) for kind in _QUANTIZED]
# The dtype of the operands of attention, and that of the cache.
_CACHES = ((bf16, bf16), (f32, f32), (bf16, calls.Q8_0))
_ELEMENTWISE = ("add", "multiply", "silu", "swiglu", "geglu", "clamped_swiglu")
# The dtypes of x and of the experts' weights. Block formats are multiplied as by linear.
_EXPERTS = [(bf16, bf16), (f32, f32), (bf16, f8e4), (f32, f16)]
_LONG_SPANS = [(8191,), (8193,), (40_001,)]
_LONG_ROWS = [(33, 1025), (3, 20_003), (1030, 33)]

CASES: dict[str, Case] = {
    "linear": Case(
        run_linear,
        [*PRODUCTS, *_QUANTIZED_PRODUCTS, *_INT8_PRODUCTS],
        3,
        [
            (125, 34, 6),
            (263, 34, 133),
            (48, 1100, 5),
            (7, 4100, 5),
            (14, 8225, 7),
            (13, 512, 130),
            (1, 1100, 203),
            (5, 96, 66),
            (1, 1056, 67),
            (2, 1056, 33),
            (7, 1056, 16),
            (12, 1056, 7),
        ],
        fitting=fitting_linear,
    ),
    "linear_reference": Case(
        run_linear_reference, [()], 3, [(13, 512, 130)], is_reference=True
    ),
    "q4_k_reference": Case(
        run_q4_k_reference,
        [(name,) for name in calls.ACTIVATIONS],
        3,
        [(3, 5, 40)],
        is_reference=True,
    ),
    "rms_norm_reference": Case(
        run_rms_norm_reference, [()], 2, [(3, 5000)], is_reference=True
    ),
    "rotary_reference": Case(
        run_rotary_reference, [(False,), (True,)], 3, [(40, 65, 5)], is_reference=True
    ),
    "attention_reference": Case(
        run_attention_reference, [(False,), (True,)], 3, [(2, 300, 5)], is_reference=True
    ),
    "quantize": Case(
        run_quantize, list(product((ml.nf4, ml.int8_block), TYPES)), 1, _LONG_SPANS
    ),
    "get_rows": Case(
        run_get_rows,
        list(product((*TYPES, *_QUANTIZED), TYPES, (False, True))),
        2,
        _LONG_ROWS,
        fitting=fitting_get_rows,
    ),
    "batched_matmul": Case(
        run_batched_matmul,
        list(product(_SAME, (filled, rows_apart))),
        3,
        [(130, 16, 3), (6, 4100, 200), (20, 96, 150)],
    ),
    "softmax": Case(
        lambda memory, x, out, *shape: calls.softmax(
            filled(memory, shape, x), memory.array(shape, out)
        ),
        list(product(ACTIVATIONS, ACTIVATIONS)),
        2,
        _LONG_ROWS,
    ),
    "rms_norm": Case(
        run_rms_norm, list(product(ACTIVATIONS, TYPES, ACTIVATIONS)), 2, _LONG_ROWS
    ),
    "rotary": Case(
        run_rotary,
        list(product(ACTIVATIONS, (False, True))),
        3,
        [(40, 129, 5), (300, 33, 7)],
    ),
    "elementwise": Case(
        run_elementwise,
        list(product(_ELEMENTWISE, ACTIVATIONS)),
        1,
        _LONG_SPANS,
    ),
    "soft_cap": Case(run_soft_cap, [(dtype,) for dtype in ACTIVATIONS], 1, _LONG_SPANS),
    "low_rank_products": Case(
        run_low_rank_products,
        [(dtype, dtype) for dtype in ACTIVATIONS],
        2,
        [(513, 17), (2048, 5)],
    ),
    "add_low_rank_changes": Case(
        run_add_low_rank_changes,
        [(matrix,) for matrix in ACTIVATIONS],
        2,
        [(513, 17), (300, 3)],
    ),
    "expert_hidden": Case(run_expert_hidden, _EXPERTS, 2, [(1056, 67), (300, 131)]),
    "expert_outputs": Case(run_expert_outputs, _EXPERTS, 2, [(1056, 67), (300, 131)]),
    "choose_experts": Case(run_choose_experts, [()], 2, [(40, 128)]),
    "attention": Case(
        run_attention,
        [
            (*dtypes, heads, is_limited)
            for dtypes, heads, is_limited in product(
                _CACHES, ((1, 1), (3, 1), (6, 2)), (False, True)
            )
        ],
        3,
        [(1, 513, 32), (2, 512, 5), (40, 489, 17), (300, 1, 33), (1, 2049, 64)],
    ),
    "write_cache": Case(
        run_write_cache,
        [(*dtypes, K) for dtypes, K in product(_CACHES, (1, 3))],
        3,
        [(700, 14, 5), (257, 1, 64)],
    ),
    "argmax": Case(
        lambda memory, dtype, *shape: calls.argmax(
            filled(memory, shape, dtype), memory.array(shape[:1], np.int32)
        ),
        [(dtype,) for dtype in ACTIVATIONS],
        2,
        _LONG_ROWS,
    ),
    "probe_read": Case(
        lambda memory, streams, n: calls.probe_read(
            filled(memory, (n,), np.uint8), streams
        ),
        [(streams,) for streams in (1, 2, 4, 8)],
        1,
        [*_LONG_SPANS, (2**20 + 5,), (3 * 2**20 + 63,)],
    ),
    "probe_multiply_add": Case(
        lambda _, dtype, rounds: calls.probe_multiply_add(dtype, rounds),
        [("bfloat16",), ("float32",)],
        1,
        [(1000,)],
    ),
    "convert": Case(
        lambda memory, x, out, n: calls.convert(
            filled(memory, (n,), x), memory.array((n,), out)
        ),
        list(product(TYPES, TYPES)),
        1,
        _LONG_SPANS,
    ),
}
