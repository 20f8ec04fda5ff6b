"""Low-rank adapters, and the rows of a pass that each of them changes.

An adapter adds a product of two small matrices to the product with a weight:

y = W x + scale * B (A x)

The weights themselves do not change. While `adapted_rows` is active in a thread, the ops
`linear_transformation`, `linear_transformations` and `get_rows` add the changes of the
adapters to the rows that these belong to. Each row of a result depends only on its own
row of the input and on its own adapters, so a row has the same bits in any pass.

Source: E. Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .errors import ShapeError
from .tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LowRankPair:
    """The two matrices with which an adapter changes a weight: scale * B (A x).

    Attributes:
        a: The first matrix, a float32, bfloat16 or float16 tensor [r, in]. For a change
            of `get_rows`, it is a table [V, r] from which rows are selected.
        b: The second matrix [out, r]. It is stored by columns, because a kernel reads
            the same column of many rows at once.
        scale: The factor of the product.
    """

    a: Tensor
    b: Tensor
    scale: float

    def __post_init__(self) -> None:
        """Make the matrix A contiguous, and copy B if it is not stored by columns."""
        columns = self.b.transpose(0, 1).contiguous()  # [r, out]
        object.__setattr__(self, "a", self.a.contiguous())
        object.__setattr__(self, "b", columns.transpose(0, 1))


@dataclass(frozen=True, eq=False)
class Adapter:
    """The changes of a model's weights, by the names of the weights.

    Attributes:
        name: The name for messages.
        products: The changes of products with a weight.
        lookups: The changes of rows selected from a weight.
    """

    name: str
    products: Mapping[str, LowRankPair] = field(repr=False)
    lookups: Mapping[str, LowRankPair] = field(repr=False)

    def digest(self) -> str:
        """Return a hash of the changes, which identifies them in prompt caches."""
        digest = hashlib.sha256()
        for kind, pairs in (("product", self.products), ("lookup", self.lookups)):
            for name, pair in sorted(pairs.items()):
                digest.update(repr((kind, name, pair.scale)).encode())
                for matrix in (pair.a, pair.b):
                    digest.update(repr((matrix.dtype, matrix.shape)).encode())
                    digest.update(matrix.contiguous().bits().tobytes())
        return digest.hexdigest()


ScaledAdapters: TypeAlias = tuple[tuple[Adapter, float], ...]
"""Adapters with a factor for each, in the order in which their changes are added."""


class AdaptedPart(NamedTuple):
    """Adjacent rows that one adapter changes.

    Attributes:
        start, stop: The rows, of those that `Round.rows` selects.
        adapter: The adapter.
        factor: Its factor.
    """

    start: int
    stop: int
    adapter: Adapter
    factor: float


class Round(NamedTuple):
    """The n-th adapter of each row that has at least n adapters.

    Attributes:
        rows: The index of the rows, grouped by adapter: a slice or an integer array.
        parts: The parts of these rows that have the same adapter.
    """

    rows: Any
    parts: Sequence[AdaptedPart]


class AdaptedRows:
    """The adapters of each row in a pass over one or more sequences.

    The products of the layers have a row for each token of the pass. The product with
    the output matrix has a row for each token whose logits are wanted.

    Args:
        parts: For each sequence of the pass, in order: the number of its tokens, the
            number of its last tokens whose logits are wanted, and its adapters.

    Attributes:
        parts: See Args.
        products: The names of the weights whose products change in some rows.
        lookups: The names of the tables whose selected rows change.
        tables: What the ops keep from one pass to the next that has the same parts.
    """

    def __init__(self, parts: Sequence[tuple[int, int, ScaledAdapters]]) -> None:
        self.parts = parts
        kinds = {adapters for _, _, adapters in parts}
        every = [adapter for adapters in kinds for adapter, _ in adapters]
        self.products = frozenset(name for each in every for name in each.products)
        self.lookups = frozenset(name for each in every for name in each.lookups)
        self.tables: dict[Any, Any] = {}
        self._only = kinds.pop() if len(kinds) == 1 else None
        self._rounds: dict[int, list[Round]] = {}
        if self._only is None:
            tokens = [(count, adapters) for count, _, adapters in parts]
            wanted = [(count, adapters) for _, count, adapters in parts]
            # If both have the same number of rows, they have the same rows.
            for counts in (wanted, tokens):
                rows = sum(count for count, _ in counts)
                self._rounds[rows] = [*_rounds(counts)]

    def rounds(self, rows: int) -> list[Round]:
        """Return the changes of a tensor with some rows, in the order of adding."""
        if rows in self._rounds:
            return self._rounds[rows]
        if self._only is not None:  # all rows have the same adapters
            self._rounds[rows] = [*_rounds([(rows, self._only)])]
            return self._rounds[rows]
        expected = " or ".join(map(str, self._rounds))
        raise ShapeError(
            f"[adapted_rows] x.shape[0] must equal the rows of the pass: {rows} != "
            f"{expected}"
        )


def _rounds(counts: Iterable[tuple[int, ScaledAdapters]]) -> Iterator[Round]:
    """Yield the rounds of rows, given the number of rows of each sequence."""
    rows: dict[ScaledAdapters, list[int]] = {}
    first = 0
    for count, adapters in counts:
        rows.setdefault(adapters, []).extend(range(first, first + count))
        first += count
    for number in range(max(map(len, rows))):
        places: list[int] = []
        parts = []
        for adapters, own in rows.items():
            if number < len(adapters) and own:
                start = len(places)
                places += own
                parts.append(AdaptedPart(start, len(places), *adapters[number]))
        if parts:
            is_range = places == list(range(places[0], places[-1] + 1))
            index: Any = slice(places[0], places[-1] + 1) if is_range else places
            yield Round(index if is_range else np.array(places), parts)


class _Active(threading.local):
    """The adapted rows of a thread.

    Attributes:
        rows: The adapted rows of the pass that runs, or None.
        latest: The adapted rows of the latest pass that had adapters. The steps of the
            same requests use them again, also if other passes run between these steps.
    """

    rows: AdaptedRows | None = None
    latest: AdaptedRows | None = None


active = _Active()


def active_parts() -> Sequence[tuple[int, int, ScaledAdapters]]:
    """Return the parts passed to the `adapted_rows` of this thread, or an empty list."""
    return [] if active.rows is None else active.rows.parts


def _adapted_rows(
    parts: Sequence[tuple[int, int, ScaledAdapters]],
) -> AdaptedRows | None:
    """Return the adapted rows of some parts, or None if no part has adapters."""
    if not any(adapters for _, _, adapters in parts):
        return None
    if active.latest is None or [*active.latest.parts] != [*parts]:
        active.latest = AdaptedRows(parts)
    return active.latest


@contextmanager
def adapted_rows(
    parts: Sequence[tuple[int, int, ScaledAdapters]],
) -> Iterator[AdaptedRows | None]:
    """Return a context manager in which the ops of this thread add adapters' changes.

    Args:
        parts: See `AdaptedRows`. If no part has adapters, the ops run as without them.
    """
    before = active.rows
    active.rows = _adapted_rows(parts)
    try:
        yield active.rows
    finally:
        active.rows = before
