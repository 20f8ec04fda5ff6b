"""Byte pair encoding: of all neighbours that join to a token, the lowest ranked merge first."""

from collections.abc import Mapping
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from sys import maxsize

import numpy as np

# Pieces up to this many characters keep their ids in the cache, so that its memory is bounded too.
CACHED_PIECE_CHARS = 64
CACHED_PIECES = 1 << 16
CACHED_PARTS = 1 << 14

# Up to this many bytes, scanning a plain list (in C) beats the bookkeeping of merge_long.
SHORT_PIECE_BYTES = 80

# Merging in whole passes pays while few different tokens are there and many of them merge at once.
_PASS_TOKENS = 64
_PASS_SHARE = 16

_NO_TOKEN = maxsize


class BytePairEncoder:
    """Turn the pieces of a text into token ids by ranks.

    Args:
        ranks: every token's bytes with its rank, which is also its id. All 256 single bytes
            must be among them, so that every piece has an encoding.
    """

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        self._ranks = ranks
        self._adjacent = adjacent_bytes(ranks)
        self._encode_cached = lru_cache(CACHED_PIECES)(self._encode_piece)
        self._merge_cached = lru_cache(CACHED_PARTS)(self._merge_short_part)

    def encode_pieces(self, pieces: list[str]) -> list[int]:
        """Encode each piece on its own and join the ids.

        Args:
            pieces: parts of a text without lone surrogates; no merge crosses from one to the next.

        Returns:
            The ids of all pieces, in order.
        """
        cached = self._encode_cached
        ids: list[int] = []
        for piece in pieces:
            if len(piece) <= CACHED_PIECE_CHARS:
                ids += cached(piece)
            else:
                ids += self._encode_piece(piece)
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        data = piece.encode()
        whole = self._ranks.get(data)
        if whole is not None:
            return [whole]
        ids: list[int] = []
        for part in self._independent_parts(data):
            if len(part) <= SHORT_PIECE_BYTES:
                ids += self._merge_cached(part)
            else:
                ids += merge_long(part, self._ranks)
        return ids

    def _merge_short_part(self, part: bytes) -> list[int]:
        return merge_short(part, self._ranks)

    def _independent_parts(self, piece: bytes) -> list[bytes]:
        """Cut a piece where no merge can cross; random bytes fall into parts of a few bytes."""
        adjacent = self._adjacent
        cuts = [
            place
            for place, (left, right) in enumerate(pairwise(piece), start=1)
            if not adjacent[left << 8 | right]
        ]
        bounds = [0, *cuts, len(piece)]
        return [piece[start:end] for start, end in pairwise(bounds)]


def adjacent_bytes(ranks: Mapping[bytes, int]) -> list[bool]:
    """Tell for each two bytes whether any token holds them next to each other.

    Where two bytes of a piece never are, no token reaches across, so no merge does: what is to
    the left and to the right can be encoded apart.

    Args:
        ranks: every token's bytes with its rank.

    Returns:
        65 536 answers, for the bytes a, b at a * 256 + b.
    """
    data = np.frombuffer(b"".join(ranks), dtype=np.uint8).astype(np.uint16)
    within = np.ones(len(data), dtype=np.bool_)
    within[np.cumsum([len(token) for token in ranks]) - 1] = False  # the next byte: another token
    answers = np.zeros(1 << 16, dtype=np.bool_)
    answers[(data[:-1] << 8 | data[1:])[within[:-1]]] = True
    return answers.tolist()


def merge_short(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Merge the lowest ranked pair, the leftmost of equals, until no pair is a token.

    Quadratic in the length, with a small constant: the scans are `min` and `list.index`.

    Args:
        piece: at least one byte.
        ranks: every token's bytes with its rank; all single bytes are there.

    Returns:
        The ranks of the parts that are left, in order.

    Source: `_byte_pair_merge` in openai/tiktoken src/lib.rs, commit 02d132e.
    """
    rank_of = ranks.get
    bounds = list(range(len(piece) + 1))  # part i is piece[bounds[i]:bounds[i + 1]]
    pairs = [rank_of(piece[i : i + 2], _NO_TOKEN) for i in range(len(piece) - 1)]
    while pairs:
        lowest = min(pairs)
        if lowest == _NO_TOKEN:
            break
        at = pairs.index(lowest)
        del bounds[at + 1], pairs[at]
        if at < len(pairs):
            pairs[at] = rank_of(piece[bounds[at] : bounds[at + 2]], _NO_TOKEN)
        if at > 0:
            pairs[at - 1] = rank_of(piece[bounds[at - 1] : bounds[at + 1]], _NO_TOKEN)
    return [ranks[piece[start:end]] for start, end in pairwise(bounds)]


def merge_long(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Give what `merge_short` gives, in O(n log n) for n bytes.

    Args:
        piece: at least one byte.
        ranks: every token's bytes with its rank; all single bytes are there.

    Returns:
        The ranks of the parts that are left, in order.
    """
    text, spelling = piece.decode("latin-1"), {chr(byte): bytes([byte]) for byte in range(256)}
    merged_all = False
    if len(set(text)) <= _PASS_TOKENS:
        text, merged_all = merge_passes(text, spelling, ranks)
    if merged_all:
        rank_of = {symbol: ranks[spelling[symbol]] for symbol in set(text)}
        return [rank_of[symbol] for symbol in text]
    return merge_batches([spelling[symbol] for symbol in text], ranks)


def merge_passes(
    text: str, spelling: dict[str, bytes], ranks: Mapping[bytes, int]
) -> tuple[str, bool]:
    """Do the first merges of a repetitive piece, each pass merging one pair wherever it occurs.

    A pass is one `str.replace`, which also takes the leftmost of overlapping pairs. It is exact
    only if no merge of it can make a pair that has to go before the next one; where that is not
    certain, and where passes do not pay, the rest is left to `merge_batches`.

    Args:
        text: the piece, one character per part.
        spelling: the bytes of every character; a character is added for each token made.
        ranks: every token's bytes with its rank.

    Returns:
        The piece, one character per part; and whether no two neighbours make a token any more.
    """
    while True:
        symbols = set(text)
        pairs = {left + right for left, right in set(pairwise(text))}
        ranked = [(ranks.get(spelling[p[0]] + spelling[p[1]], _NO_TOKEN), p) for p in pairs]
        ranked.sort()
        if not ranked or ranked[0][0] == _NO_TOKEN:
            return text, True
        rank, pair = ranked[0]
        joined = spelling[pair[0]] + spelling[pair[1]]
        symbol = chr(len(spelling))
        spelling[symbol] = joined
        around = [spelling[other] for other in symbols] + [joined]
        if (
            len(symbols) > _PASS_TOKENS
            or text.count(pair) * _PASS_SHARE < len(text)
            or [other for other, _ in ranked[:2]] == [rank, rank]  # two spellings may overlap
            or any(ranks.get(part + joined, _NO_TOKEN) <= rank for part in around)
            or any(ranks.get(joined + part, _NO_TOKEN) <= rank for part in around)
        ):
            return text, False
        text = text.replace(pair, symbol)


def merge_batches(parts: list[bytes], ranks: Mapping[bytes, int]) -> list[int]:
    """Merge the lowest ranked pair, the leftmost of equals, until no pair is a token.

    Parts are a linked list over byte positions. The pairs that wait for one rank share a batch
    of positions, so the heap holds one entry per distinct rank instead of one per pair, and most
    pairs cost one append. A pair that ranks below the batch in work must go before the rest
    of that batch; such pairs are rare and have a heap of their own.

    Args:
        parts: the piece, cut into tokens.
        ranks: every token's bytes with its rank.

    Returns:
        The ranks of the parts that are left, in order.
    """
    piece, rank_of = b"".join(parts), ranks.get
    size = len(piece)
    starts = list(accumulate(map(len, parts), initial=0))
    after = [size] * size  # where the part that starts here ends
    before = [0] * size  # where the part before the one that starts here starts
    pair_rank: list[int | None] = [None] * size  # of the part that starts here and the next
    batches = _Batches()
    for left, right, end in zip(starts, starts[1:], starts[2:], strict=False):
        after[left] = right
        before[right] = left
        pair_rank[left] = found = rank_of(piece[left:end])
        if found is not None:
            batches[found].append(left)
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
            if pair_rank[left] != rank:
                continue  # one of its parts has merged with another since
            right = after[left]
            after[left] = end = after[right]
            pair_rank[right] = None
            if end < size:
                before[end] = left
                pair_rank[left] = found = rank_of(piece[left : after[end]])
                if found is not None:
                    if found > batch_rank:
                        batches[found].append(left)
                    else:
                        heappush(urgent, (found, left))
            else:
                pair_rank[left] = None
            if left:
                start = before[left]
                pair_rank[start] = found = rank_of(piece[start:end])
                if found is not None:
                    if found > batch_rank:
                        batches[found].append(start)
                    else:
                        heappush(urgent, (found, start))
    ids, start = [], 0
    while start < size:
        ids.append(ranks[piece[start : after[start]]])
        start = after[start]
    return ids


class _Batches(dict[int, list[int]]):
    """Positions of pairs by rank, and a heap of the ranks that have any."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []

    def __missing__(self, rank: int) -> list[int]:
        heappush(self.waiting, rank)
        return self.setdefault(rank, [])
