"""Encode the pieces of a text one by one, remembering what was met before."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from .bpe import Merges, merge

# Pieces up to this many characters keep their ids in the cache, so that its memory is bounded too.
CACHED_PIECE_CHARS = 64
CACHED_PIECES = 1 << 16

# The same for parts of pieces, in symbols.
CACHED_PART_SYMBOLS = 80
CACHED_PARTS = 1 << 14

_Symbols = TypeVar("_Symbols", bytes, str)


class PieceEncoder(ABC, Generic[_Symbols]):
    """What encoders of pieces share: their caches, and how they cut pieces into parts."""

    def __init__(self) -> None:
        self._encode_cached = lru_cache(CACHED_PIECES)(self._encode_piece)
        self._merge_cached = lru_cache(CACHED_PARTS)(self._merge_part)

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

    def _encode_parts(self, piece: _Symbols) -> list[int]:
        """Encode a piece part by part; random bytes fall into parts of a few bytes."""
        ids: list[int] = []
        for start, end in pairwise([0, *self._cuts(piece), len(piece)]):
            part = piece[start:end]
            if len(part) <= CACHED_PART_SYMBOLS:
                ids += self._merge_cached(part)
            else:
                ids += self._merge_part(part)
        return ids

    @abstractmethod
    def _encode_piece(self, piece: str) -> list[int]: ...

    @abstractmethod
    def _cuts(self, piece: _Symbols) -> list[int]:
        """Give the places in a piece that no merge can cross, in order."""

    @abstractmethod
    def _merge_part(self, part: _Symbols) -> list[int]: ...


class BytePieces(PieceEncoder[bytes]):
    """Encode pieces from their UTF-8 bytes on: byte-level BPE.

    Args:
        tokens: the id of every token that text can become, by its bytes. A byte that is no token
            is left out of the text.
        merges: what merges.
        whole: whether a piece that is a token is that token, however it would merge.
    """

    def __init__(self, tokens: Mapping[bytes, int], merges: Merges, *, whole: bool) -> None:
        super().__init__()
        self._merges = merges
        self._wholes: Mapping[bytes, int] = tokens if whole else {}
        self._adjacent = adjacent_bytes(tokens)
        self._byte_ids = [tokens.get(bytes([byte]), -1) for byte in range(256)]
        self._missing = bytes(byte for byte in range(256) if self._byte_ids[byte] < 0)

    def _encode_piece(self, piece: str) -> list[int]:
        data = piece.encode()
        whole = self._wholes.get(data)
        if whole is not None:
            return [whole]
        if self._missing:
            data = data.translate(None, self._missing)
        return self._encode_parts(data)

    def _merge_part(self, part: bytes) -> list[int]:
        return merge([self._byte_ids[byte] for byte in part], self._merges)

    def _cuts(self, piece: bytes) -> list[int]:
        adjacent = self._adjacent
        return [
            place
            for place, (left, right) in enumerate(pairwise(piece), start=1)
            if not adjacent[left << 8 | right]
        ]


def adjacent_bytes(tokens: Mapping[bytes, int]) -> list[bool]:
    """Tell for each two bytes whether any token holds them next to each other.

    Where two bytes of a piece never are, no token reaches across, so no merge does: what is to
    the left and to the right can be encoded apart.

    Args:
        tokens: every token's bytes, at least one; their ids do not matter.

    Returns:
        65 536 answers, for the bytes a, b at a * 256 + b.
    """
    data = np.frombuffer(b"".join(tokens), dtype=np.uint8).astype(np.uint16)
    within = np.ones(len(data), dtype=np.bool_)
    within[np.cumsum([len(token) for token in tokens]) - 1] = False  # the next byte: another token
    answers = np.zeros(1 << 16, dtype=np.bool_)
    answers[(data[:-1] << 8 | data[1:])[within[:-1]]] = True
    return answers.tolist()


class CharacterPieces(PieceEncoder[str]):
    """Encode pieces from their characters on: SentencePiece-style BPE.

    Args:
        symbols: the id of every character that some token holds, as `character_symbols` gives it.
        tokens: every token that text can become, by its text.
        merges: what merges.
        fallback: gives the ids of a character that is no token.
        whole: whether a piece that is a token is that token, however it would merge.
    """

    def __init__(
        self,
        symbols: Mapping[str, int],
        tokens: Mapping[str, int],
        merges: Merges,
        fallback: Callable[[str], list[int]],
        *,
        whole: bool,
    ) -> None:
        super().__init__()
        self._symbols, self._merges, self._fallback = symbols, merges, fallback
        self._wholes: Mapping[str, int] = tokens if whole else {}
        self._stand_ins = {number: c for c, number in symbols.items() if c not in tokens}
        self._adjacent = {left + right for token in tokens for left, right in pairwise(token)}

    def _encode_piece(self, piece: str) -> list[int]:
        whole = self._wholes.get(piece)
        if whole is not None:
            return [whole]
        return self._encode_parts(piece)

    def _merge_part(self, part: str) -> list[int]:
        if part not in self._symbols and len(part) == 1:
            return self._fallback(part)
        ids = merge([self._symbols[character] for character in part], self._merges)
        if not self._stand_ins:
            return ids
        spelled = [(number, self._stand_ins.get(number)) for number in ids]
        parts = [[number] if c is None else self._fallback(c) for number, c in spelled]
        return [number for part_ids in parts for number in part_ids]

    def _cuts(self, piece: str) -> list[int]:
        adjacent = self._adjacent
        if all(left + right in adjacent for left, right in set(pairwise(piece))):
            return []  # told soon for a long piece of few characters
        return [
            place
            for place, (left, right) in enumerate(pairwise(piece), start=1)
            if left + right not in adjacent
        ]


def character_symbols(tokens: Mapping[str, int], first_free: int) -> dict[str, int]:
    """Give every character that a token holds the id of its token, or a stand-in.

    Args:
        tokens: the id of every token that text can become.
        first_free: the first number that is no id; stand-ins start there.
    """
    characters = sorted(set("".join(tokens)))
    others = [character for character in characters if character not in tokens]
    symbols = {character: tokens[character] for character in characters if character in tokens}
    return symbols | {character: first_free + n for n, character in enumerate(others)}
