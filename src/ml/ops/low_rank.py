"""The changes that low-rank adapters add to products and look-ups, in float32.

The adapters of a pass and the weights that they change are written into tables, which the
kernels of `csrc/rows/low_rank.c` read. Steps of the same requests use the same tables.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from ..adapted import AdaptedRows, LowRankPair
from ..checks import describe_operands
from ..dtype import DType, float32
from ..errors import ShapeError
from ..kernels import ffi, lib
from ..tensor import Tensor, allocate


class _Tables(NamedTuple):
    """The changes of the products of one op, as arrays of the kernels.

    Attributes:
        products: The products with the matrices A.
        changes: The changes, ordered by the result that they belong to.
        results: The changes of each changed result. Each call sets the addresses.
        changed: The numbers of these results in the op.
        rows: The numbers of tokens to which products and changes refer.
        low_size: The number of elements of all products with A.
        pairs: The pairs whose memory the tables refer to.
    """

    products: Any
    changes: Any
    results: Any
    changed: Sequence[int]
    rows: Any
    low_size: int
    pairs: Sequence[LowRankPair]


def add_changes(
    results: Sequence[Tensor],
    names: Sequence[str],
    x: Tensor,
    adapted: AdaptedRows,
    dtype: DType,
) -> tuple[Tensor, ...]:
    """Return the products of one op with the changes of the adapters.

    out_p[t] += scale * B_p (A_p x[t]) for each adapter of token t, in their order,
    rounded once

    Args:
        results: The products, contiguous float32 tensors [T, out_p], which change.
        names: The names of the weights of these products.
        x: A contiguous float32 or bfloat16 tensor [T, in].
        adapted: The adapters of the tokens.
        dtype: The floating-point dtype of the results.

    Returns:
        A tensor [T, out_p] for each product.

    Raises:
        ShapeError: If a matrix does not fit its weight, or T differs from the rows of
            the pass.
    """
    count = x._shape[0] if x._shape else 0
    key = (count, *names)
    tables = adapted.tables.get(key)
    if tables is None:
        columns = [result._shape[-1] for result in results]
        tables = _make_tables(adapted, names, count, x, columns)
        adapted.tables[key] = tables
    low = kernels.pointer(kernels.scratch(4 * tables.low_size))
    changed = list(results)
    for place, number in enumerate(tables.changed):
        result = results[number]
        entry = tables.results[place]
        entry.out = kernels.pointer(result._pointer)
        entry.rounded = ffi.NULL
        if dtype is not float32:
            changed[number] = allocate(result._shape, dtype)
            entry.rounded = kernels.pointer(changed[number]._pointer)
            entry.rounded_type = dtype.code
    lib.low_rank_products(
        low,
        x._pointer,
        tables.rows,
        tables.products,
        len(tables.products),
        x._shape[-1],
        x._dtype.code,
        kernels.threads,
    )
    _add(tables.results, tables.changes, low, tables.rows, x._shape[0])
    # Results without changes are rounded here.
    return tuple([result.to(dtype) for result in changed])


def _make_tables(
    adapted: AdaptedRows,
    names: Sequence[str],
    count: int,
    x: Tensor,
    columns: Sequence[int],
) -> _Tables:
    """Return the tables for products of `count` tokens with the weights of some names."""
    rows: list[int] = []
    products: list[tuple[Any, ...]] = []
    # For each result, its changes.
    changes: list[list[tuple[Any, ...]]] = [[] for _ in names]
    pairs: list[LowRankPair] = []
    low_size = 0
    for each in adapted.rounds(count):
        for part in each.parts:
            tokens = part.stop - part.start
            lows: dict[int, int] = {}  # parts of one stored matrix share the matrix A
            for number, name in enumerate(names):
                pair = part.adapter.products.get(name)
                if pair is None:
                    continue
                rank = pair.a._shape[0]
                _check_fit(x, pair.a, (rank, x._shape[-1]))
                _check_fit(x, pair.b, (columns[number], rank))
                first = len(rows) + part.start
                if id(pair.a) not in lows:
                    lows[id(pair.a)] = low_size
                    products.append(
                        (pair.a._pointer, rank, first, tokens, low_size, _code(pair.a))
                    )
                    low_size += tokens * rank
                changes[number].append(
                    _change(pair, first, tokens, lows[id(pair.a)], part.factor)
                )
                pairs.append(pair)
        rows += np.arange(count)[each.rows].tolist()
    changed = [number for number, own in enumerate(changes) if own]
    results = []
    first_change = 0
    for number in changed:
        own = len(changes[number])
        results.append((ffi.NULL, ffi.NULL, columns[number], first_change, own, 0))
        first_change += own
    return _Tables(
        products=ffi.new("LowRankProduct[]", products),
        changes=ffi.new("LowRankChange[]", [*itertools.chain(*changes)]),
        results=ffi.new("LowRankResult[]", results),
        changed=changed,
        rows=ffi.new("ptrdiff_t[]", rows),
        low_size=low_size,
        pairs=pairs,
    )


def add_change(
    result: Tensor, rows: Any, low: Tensor, pair: LowRankPair, factor: float
) -> None:
    """Add the change of selected rows by one adapter: result[rows] += scale * low B^T.

    Args:
        result: A contiguous float32 tensor [T, out], which changes.
        rows: The indices of the rows, an array of integers.
        low: A contiguous float32 tensor [rows, r], the rows of the matrix A.
        pair: The matrix B and its scale.
        factor: The factor of the adapter.

    Raises:
        ShapeError: If the shape of B is not [out, r].
    """
    _check_fit(low, pair.b, (result._shape[-1], low._shape[-1]))
    change = _change(pair, 0, low._shape[0], 0, factor)
    out = kernels.pointer(result._pointer)
    fields = (out, ffi.NULL, result._shape[-1], 0, 1, 0)
    results = ffi.new("LowRankResult[]", [fields])
    changes = ffi.new("LowRankChange[]", [change])
    numbers = ffi.new("ptrdiff_t[]", rows.tolist())
    low_at = kernels.pointer(low._pointer)
    _add(results, changes, low_at, numbers, result._shape[0])


def _change(
    pair: LowRankPair, first: int, tokens: int, low: int, factor: float
) -> tuple[Any, ...]:
    """Return the fields of a C `LowRankChange`."""
    b = kernels.pointer(pair.b.data_pointer)
    rank = pair.b._shape[1]
    return b, rank, first, tokens, low, pair.scale * factor, _code(pair.b)


def _add(results: Any, changes: Any, low: Any, rows: Any, T: int) -> None:
    lib.add_low_rank_changes(
        results, len(results), changes, low, rows, T, kernels.threads
    )


def _code(matrix: Tensor) -> int:
    """Return the number of a matrix's type in C."""
    return matrix._dtype.code


def _check_fit(x: Tensor, matrix: Tensor, shape: tuple[int, int]) -> None:
    """Raise ShapeError if a matrix of an adapter does not have the expected shape."""
    if matrix._shape != shape:
        both = describe_operands(("x", x), ("matrix", matrix))
        rule = "the matrices of an adapter must fit its weight"
        raise ShapeError(f"[adapted_rows] {rule}: {both}")
