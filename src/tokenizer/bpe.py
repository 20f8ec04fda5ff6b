"""Byte pair encoding over token ids: the lowest ranked pair of neighbours merges first.

The merges of a tokenizer file are given as `Merges`. Symbols are ids; `encoders.py`
decides whether they begin as bytes or as characters. Both ways to merge give the same
ids: `merge_short` is faster for words, `merge_long` takes O(n log n) for a piece of any
length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise
from sys import maxsize
from typing import AnyStr, Generic

NO_MERGE = maxsize

# A pair of ids as one integer: left << PAIR_SHIFT | right.
PAIR_SHIFT = 24
MOST_IDS = 1 << PAIR_SHIFT
_RIGHT_ID = MOST_IDS - 1

# Up to this many symbols, scanning a plain list (in C) is faster than the bookkeeping of
# merge_long.
SHORT_SYMBOLS = 80

# The most pairs in the cache of pairs by their text.
CACHED_PAIRS = 1 << 17


@dataclass(frozen=True)
class Merges:
    """The pairs of ids that merge, their order, and their results."""

    # `NO_MERGE` for other pairs; equal ranks merge from left to right.
    ranks: Mapping[int, int]
    joined: Mapping[int, int]  # the id that a pair merges to, for pairs that do


def listed_merges(pairs: Sequence[int], joined: Sequence[int]) -> Merges:
    """Return merges of different `pairs` to the ids `joined`, the first one first.

    A pair is left << PAIR_SHIFT | right.
    """
    return Merges(
        _Listed(zip(pairs, count(), strict=False)), dict(zip(pairs, joined, strict=True))
    )


def spelled_merges(
    texts: Sequence[AnyStr], rank_of: Mapping[AnyStr, int], id_of: Mapping[AnyStr, int]
) -> Merges:
    """Return merges of all pairs whose joined texts are a token, by the token's rank.

    `texts` are the texts of the ids.
    """
    return Merges(_Spelled(texts, rank_of), _Spelled(texts, id_of))


class _Listed(dict[int, int]):
    def __missing__(self, pair: int) -> int:
        return NO_MERGE


class _Spelled(dict[int, int], Generic[AnyStr]):
    """A bounded cache of values of pairs, from a table by text."""

    def __init__(self, texts: Sequence[AnyStr], table: Mapping[AnyStr, int]) -> None:
        super().__init__()
        self._texts: Sequence[AnyStr] = texts
        self._table: Mapping[AnyStr, int] = table

    def __missing__(self, pair: int) -> int:
        if len(self) >= CACHED_PAIRS:
            self.clear()
        text = self._texts[pair >> PAIR_SHIFT] + self._texts[pair & _RIGHT_ID]
        value: int = self._table.get(text, NO_MERGE)
        self[pair] = value
        return value


def merge(ids: list[int], merges: Merges) -> list[int]:
    """Merge the lowest ranked pair, the leftmost of equal ranks, until no pair merges.

    `ids` are the symbols of a piece; the list may be changed.
    """
    return (merge_short if len(ids) <= SHORT_SYMBOLS else merge_long)(ids, merges)


def merge_short(ids: list[int], merges: Merges) -> list[int]:
    """Merge as `merge` does; quadratic in the length, with scans by `min` and `index`.

    Source: `_byte_pair_merge` in openai/tiktoken src/lib.rs, commit 02d132e.
    """
    rank_of = merges.ranks
    joined = merges.joined
    ranks = [rank_of[left << PAIR_SHIFT | right] for left, right in pairwise(ids)]
    while ranks:
        lowest = min(ranks)
        if lowest == NO_MERGE:
            break
        at = ranks.index(lowest)
        ids[at] = symbol = joined[ids[at] << PAIR_SHIFT | ids[at + 1]]
        del ids[at + 1], ranks[at]
        if at < len(ranks):
            ranks[at] = rank_of[symbol << PAIR_SHIFT | ids[at + 1]]
        if at:
            ranks[at - 1] = rank_of[ids[at - 1] << PAIR_SHIFT | symbol]
    return ids


def merge_long(ids: list[int], merges: Merges) -> list[int]:
    """Merge as `merge` does, in O(n log n) for n symbols.

    Symbols are a linked list over positions. The pairs that wait for one rank share a
    batch of positions, so the heap holds one entry per distinct rank instead of one per
    pair, and most pairs cost one append. A pair that does not rank above the current
    batch may have to merge before the rest of it; such pairs are rare and have a separate
    heap.
    """
    rank_of = merges.ranks
    joined = merges.joined
    size = len(ids)
    after = list(range(1, size + 1))  # the position of the next symbol
    before = list(range(-1, size - 1))
    ranks = [rank_of[left << PAIR_SHIFT | right] for left, right in pairwise(ids)]
    ranks.append(NO_MERGE)  # ranks of pairs of this symbol and the next
    batches = _Batches()
    for position, rank in enumerate(ranks):
        if rank != NO_MERGE:
            batches[rank].append(position)
    urgent: list[tuple[int, int]] = []
    while batches.waiting:
        batch_rank = heappop(batches.waiting)
        batch = batches.pop(batch_rank)
        batch.sort(reverse=True)
        while batch or urgent:
            if urgent and (not batch or urgent[0] < (batch_rank, batch[-1])):
                rank, left = heappop(urgent)
            else:
                rank = batch_rank
                left = batch.pop()
            if ranks[left] != rank:
                continue  # one of its symbols has merged since
            right = after[left]
            ids[left] = symbol = joined[ids[left] << PAIR_SHIFT | ids[right]]
            after[left] = end = after[right]
            ranks[right] = ranks[left] = NO_MERGE
            if end < size:
                before[end] = left
                ranks[left] = new_rank = rank_of[symbol << PAIR_SHIFT | ids[end]]
                if new_rank <= batch_rank:
                    heappush(urgent, (new_rank, left))
                elif new_rank != NO_MERGE:
                    batches[new_rank].append(left)
            start = before[left]
            if start >= 0:
                ranks[start] = new_rank = rank_of[ids[start] << PAIR_SHIFT | symbol]
                if new_rank <= batch_rank:
                    heappush(urgent, (new_rank, start))
                elif new_rank != NO_MERGE:
                    batches[new_rank].append(start)
    position = 0
    left_over = []
    while position < size:
        left_over.append(ids[position])
        position = after[position]
    return left_over


class _Batches(dict[int, list[int]]):
    """Positions of pairs by rank, and a heap of the ranks with positions."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []

    def __missing__(self, rank: int) -> list[int]:
        heappush(self.waiting, rank)
        return self.setdefault(rank, [])
