"""Encode text without special or added tokens: split it into pieces and merge each of them.

A piece is what a pre-tokenizer yields; no merge crosses from one to the next. Byte-level BPE begins
with the bytes of a piece. SentencePiece-style BPE begins with its characters, after spaces became
metaspaces, U+2581.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import count, groupby, pairwise
from typing import Generic, TypeVar

import numpy as np
import regex

from .bpe import Merges, merge
from .pre_tokenizers import METASPACE, METASPACE_WORDS, PreTokenizer

# Pieces up to this many characters keep their ids in the cache, so that its memory is bounded too.
CACHED_PIECE_CHARS = 64
CACHED_PIECES = 1 << 16

# The same for parts of pieces, in symbols.
CACHED_PART_SYMBOLS = 80
CACHED_PARTS = 1 << 14

_LONG_MARKS = regex.compile(r"\p{M}{64,}")

_Symbols = TypeVar("_Symbols", bytes, str)


class PieceEncoder(ABC, Generic[_Symbols]):
    """What both encoders share: their caches, and how they cut pieces into parts."""

    def __init__(self) -> None:
        self._encode_cached = lru_cache(CACHED_PIECES)(self._encode_piece)
        self._merge_cached = lru_cache(CACHED_PARTS)(self._merge_part)

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Encode text in which no added tokens are looked for."""
        return self.encode_normalized(self.normalize(text), first=first)

    @abstractmethod
    def normalize(self, text: str) -> str:
        """Prepare a text, or what is between two added tokens of it."""

    @abstractmethod
    def encode_normalized(self, text: str, *, first: bool) -> list[int]:
        """Encode a normalized text, or a part of it that holds no added token."""

    def encode_pieces(self, pieces: list[str]) -> list[int]:
        """Encode each piece, a part of a text without lone surrogates, and join the ids."""
        cached, ids = self._encode_cached, list[int]()
        for piece in pieces:
            ids += (cached if len(piece) <= CACHED_PIECE_CHARS else self._encode_piece)(piece)
        return ids

    def _encode_parts(self, piece: _Symbols) -> list[int]:
        """Encode a piece part by part; random bytes fall into parts of a few bytes."""
        ids: list[int] = []
        for start, end in pairwise([0, *self._cuts(piece), len(piece)]):
            is_short = end - start <= CACHED_PART_SYMBOLS
            ids += (self._merge_cached if is_short else self._merge_part)(piece[start:end])
        return ids

    @abstractmethod
    def _encode_piece(self, piece: str) -> list[int]: ...

    @abstractmethod
    def _cuts(self, piece: _Symbols) -> list[int]:
        """Return the places in a piece that no merge can cross, in order."""

    @abstractmethod
    def _merge_part(self, part: _Symbols) -> list[int]: ...


def _in_order(marks: re.Match[str]) -> str:
    """Sort marks as Unicode does; Python's own sort takes the square of their number."""
    apart = "".join(unicodedata.normalize("NFD", mark) for mark in marks[0])
    runs = groupby(apart, key=lambda mark: unicodedata.combining(mark) > 0)
    return "".join(m for _, run in runs for m in sorted(run, key=unicodedata.combining))


class ByteLevelEncoder(PieceEncoder[bytes]):
    """Encode pieces from their UTF-8 bytes: byte-level BPE.

    Args:
        tokens: The id of every token that text can become, by its bytes. A byte without a token
            is left out of the text.
        merges: What merges.
        pre_tokenizer: Splits a text into pieces.
        whole: Whether a piece that is a token becomes that token, whatever the merges give.
        prefix_space: Whether a space is put before a text that does not start with one.
        composes: Whether texts are brought into Unicode's normalization form C.
    """

    def __init__(
        self,
        tokens: Mapping[bytes, int],
        merges: Merges,
        pre_tokenizer: PreTokenizer,
        *,
        whole: bool,
        prefix_space: bool = False,
        composes: bool = False,
    ) -> None:
        super().__init__()
        self._merges, self._pre_tokenizer, self._prefix_space = merges, pre_tokenizer, prefix_space
        self._composes = composes
        self._wholes: Mapping[bytes, int] = tokens if whole else {}
        self._adjacent = adjacent_bytes(tokens)
        self._byte_ids = [tokens.get(bytes([byte]), -1) for byte in range(256)]
        self._missing = bytes(byte for byte in range(256) if self._byte_ids[byte] < 0)

    def normalize(self, text: str) -> str:
        """Prepare a text, or what is between two added tokens of it."""
        if not self._composes or text.isascii():
            return text
        return unicodedata.normalize("NFC", _LONG_MARKS.sub(_in_order, text))

    def encode_normalized(self, text: str, *, first: bool) -> list[int]:  # noqa: ARG002 # of both
        """Encode a text, or what is between two added tokens of it."""
        if self._prefix_space and text and not text.startswith(" "):
            text = " " + text
        ids: list[int] = []
        for pieces in self._pre_tokenizer.split(text):
            ids += self.encode_pieces(pieces)
        return ids

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
    """Tell for each two bytes whether any of the tokens, at least one, holds them so.

    If none does, no merge joins them, so that what is to the left and to the right can be encoded
    separately.

    Returns:
        65 536 answers, for the bytes a, b at a * 256 + b.
    """
    data = np.frombuffer(b"".join(tokens), dtype=np.uint8).astype(np.uint16)
    within = np.ones(len(data), dtype=np.bool_)
    within[np.cumsum([len(token) for token in tokens]) - 1] = False  # the next byte: another token
    answers = np.zeros(1 << 16, dtype=np.bool_)
    answers[(data[:-1] << 8 | data[1:])[within[:-1]]] = True
    return answers.tolist()


class PrependScheme(Enum):
    """When a metaspace is put before a text."""

    ALWAYS = "before every text that is not empty"
    UNLESS_THERE = "before every text that does not start with one"
    FIRST_UNLESS_THERE = "before the first text of a prompt, unless it starts with one"
    NEVER = "never"


def replace_spaces(text: str, scheme: PrependScheme, *, first: bool = True) -> str:
    """Replace spaces with metaspaces, and prepend one where the scheme says so.

    `first` tells whether nothing comes before the text.
    """
    text = text.replace(" ", METASPACE)
    if scheme is PrependScheme.NEVER or not text:
        return text
    if scheme is not PrependScheme.ALWAYS and (
        text.startswith(METASPACE) or not (first or scheme is PrependScheme.UNLESS_THERE)
    ):
        return text
    return METASPACE + text


def words_are_independent(tokens: Iterable[str]) -> bool:
    """Tell whether no token reaches from one word into the next."""
    return not any(METASPACE in token.lstrip(METASPACE) for token in tokens)


class MetaspaceEncoder(PieceEncoder[str]):
    """Encode pieces from their characters, spaces as metaspaces: SentencePiece-style BPE.

    Args:
        symbols: The id of every character that some token holds, as `character_symbols` gives it.
        tokens: The id of every token that text can become, by its text.
        merges: Those of the tokens.
        byte_ids: The ids of the 256 bytes, which stand for a character without a token.
        normalize: Prepares a whole text before added tokens are looked for in it.
        whole: Whether a piece that is a token becomes that token, whatever the merges give.
        words: Whether words are encoded separately: because the file says so, or because no token
            reaches from one to the next, so that the ids are the same.
        scheme: How spaces are replaced after added tokens were found; None if `normalize` does it.
    """

    def __init__(
        self,
        symbols: Mapping[str, int],
        tokens: Mapping[str, int],
        merges: Merges,
        byte_ids: Sequence[int],
        *,
        normalize: Callable[[str], str] = str,
        whole: bool = False,
        words: bool = False,
        scheme: PrependScheme | None = None,
    ) -> None:
        super().__init__()
        self._symbols, self._merges, self._byte_ids = symbols, merges, byte_ids
        self._normalize, self._words, self._scheme = normalize, words, scheme
        self._wholes: Mapping[str, int] = tokens if whole else {}
        self._placeholders = {number: c for c, number in symbols.items() if c not in tokens}
        self._adjacent = {left + right for token in tokens for left, right in pairwise(token)}

    def normalize(self, text: str) -> str:
        """Prepare a text, or what is between two added tokens of it."""
        return self._normalize(text)

    def encode_normalized(self, text: str, *, first: bool) -> list[int]:
        """Encode a text, or what is between two added tokens of it."""
        if self._scheme is not None:
            text = replace_spaces(text, self._scheme, first=first)
        if not self._words:
            return self.encode_pieces([text] if text else [])
        ids: list[int] = []
        for words in METASPACE_WORDS.split(text):
            ids += self.encode_pieces(words)
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        whole = self._wholes.get(piece)
        return self._encode_parts(piece) if whole is None else [whole]

    def _merge_part(self, part: str) -> list[int]:
        if len(part) == 1 and part not in self._symbols:
            return self._bytes_of(part)
        ids = merge([self._symbols[character] for character in part], self._merges)
        if not self._placeholders:
            return ids
        spelled = [(number, self._placeholders.get(number)) for number in ids]
        parts = [[number] if c is None else self._bytes_of(c) for number, c in spelled]
        return [number for part_ids in parts for number in part_ids]

    def _bytes_of(self, character: str) -> list[int]:
        return [self._byte_ids[byte] for byte in character.encode()]

    def _cuts(self, piece: str) -> list[int]:
        adjacent = self._adjacent
        if all(left + right in adjacent for left, right in set(pairwise(piece))):
            return []  # known soon for a long piece of few characters
        return [
            place
            for place, (left, right) in enumerate(pairwise(piece), start=1)
            if left + right not in adjacent
        ]


def character_symbols(tokens: Mapping[str, int], first_free: int) -> dict[str, int]:
    """Return for every character that a token holds the id of its token, or a placeholder.

    Placeholders start at `first_free`, the first number that is not an id.
    """
    free = count(first_free)
    return {c: tokens[c] if c in tokens else next(free) for c in sorted(set("".join(tokens)))}
