"""Byte pair encoding over token ids: the adjacent pair with the lowest rank merges first.

`Merges` contains the merge rules from a tokenizer file. All symbols are ids, and
`encoders.py` decides whether the initial symbols represent bytes or characters.
`merge_short` and `merge_long` return the same ids. `merge_short` is faster for words,
while `merge_long` takes O(n log n) time for a piece of any length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise
from sys import maxsize
from typing import AnyStr, Generic

NO_MERGE = maxsize

# A pair of ids is packed into one integer: left << PAIR_SHIFT | right.
PAIR_SHIFT = 24
MOST_IDS = 1 << PAIR_SHIFT
_RIGHT_ID = MOST_IDS - 1

# Up to this many symbols, scanning a plain list (in C) is faster than the bookkeeping of
# merge_long.
SHORT_SYMBOLS = 80

# The maximum number of pairs in each `_Spelled` cache.
CACHED_PAIRS = 1 << 17


@dataclass(frozen=True)
class Merges:
    """The pairs of ids that merge, with their ranks and resulting ids.

    A pair is packed as `left << PAIR_SHIFT | right`.
    """

    # Pair -> rank, or `NO_MERGE` if the pair does not merge. Pairs of equal rank merge
    # from left to right.
    ranks: Mapping[int, int]
    joined: Mapping[int, int]  # pair -> resulting id, only valid for pairs that merge


def listed_merges(pairs: Sequence[int], joined: Sequence[int]) -> Merges:
    """Return merges whose ranks are the indices of `pairs`.

    Args:
        pairs: Distinct pairs, each packed as `left << PAIR_SHIFT | right`.
        joined: The id that each pair merges into.
    """
    return Merges(
        _Listed(zip(pairs, count(), strict=False)), dict(zip(pairs, joined, strict=True))
    )


def spelled_merges(
    texts: Sequence[AnyStr], rank_of: Mapping[AnyStr, int], id_of: Mapping[AnyStr, int]
) -> Merges:
    """Return merges for all pairs whose concatenated strings form a token.

    Args:
        texts: The string or bytes of each id.
        rank_of: A mapping from a token to its rank.
        id_of: A mapping from a token to its id.
    """
    return Merges(_Spelled(texts, rank_of), _Spelled(texts, id_of))


class _Listed(dict[int, int]):
    def __missing__(self, pair: int) -> int:
        return NO_MERGE


class _Spelled(dict[int, int], Generic[AnyStr]):
    """A bounded cache that maps a pair to the table entry for its concatenated string."""

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
    """Merge the pair with the lowest rank, leftmost first, until no pair merges.

    `ids` contains the symbols of a piece, and may be modified in place.
    """
    return (merge_short if len(ids) <= SHORT_SYMBOLS else merge_long)(ids, merges)


def merge_short(ids: list[int], merges: Merges) -> list[int]:
    """Merge as `merge` does, in quadratic time, by scanning lists with `min` and `index`.

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

    Symbols form a linked list over positions. Pairs of the same rank share a batch of
    positions, so the heap has one entry per distinct rank instead of one per pair, and
    most pairs cost only one append. A new pair whose rank does not exceed that of the
    current batch may have to merge before the rest of the batch. Such pairs are rare and
    are kept in a separate heap.
    """
    rank_of = merges.ranks
    joined = merges.joined
    size = len(ids)
    after = list(range(1, size + 1))  # the position of the next symbol
    before = list(range(-1, size - 1))
    ranks = [rank_of[left << PAIR_SHIFT | right] for left, right in pairwise(ids)]
    ranks.append(NO_MERGE)  # ranks[i] is the rank of the pair that starts at position i
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
                continue  # one of its symbols has merged in the meantime
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
    """A mapping from a rank to positions of pairs, with a heap of its ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []

    def __missing__(self, rank: int) -> list[int]:
        heappush(self.waiting, rank)
        return self.setdefault(rank, [])
