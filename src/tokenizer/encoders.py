"""Encoders, which split the text between added tokens into pieces and merge each piece.

A pre-tokenizer determines the pieces, and no merge crosses a piece's boundaries.
Byte-level BPE starts with the bytes of a piece. SentencePiece-style BPE starts with its
characters, after each space is replaced by a metaspace (U+2581).
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain, count, groupby, pairwise
from typing import Generic, TypeVar

import numpy as np
import regex

from .added_tokens import AddedToken, AddedTokenFinder
from .bpe import Merges, merge
from .pre_tokenizers import METASPACE, METASPACE_WORDS, PreTokenizer

# Maximum length of a cached piece, in characters, which bounds the cache's memory use.
CACHED_PIECE_CHARS = 64
CACHED_PIECES = 1 << 16

# The same limits for parts of pieces, with the length in symbols.
CACHED_PART_SYMBOLS = 80
CACHED_PARTS = 1 << 14

_LONG_MARKS = regex.compile(r"\p{M}{64,}")

_Symbols = TypeVar("_Symbols", bytes, str)


class PieceEncoder(ABC, Generic[_Symbols]):
    """Base class of both encoders, which handles added tokens and caches results."""

    def __init__(self, adjacent: Container[tuple[object, object]]) -> None:
        """Initialize with all pairs of symbols that are adjacent within any token."""
        self._adjacent = adjacent
        self._encode_cached = lru_cache(CACHED_PIECES)(self._encode_piece)
        self._merge_cached = lru_cache(CACHED_PARTS)(self._merge_part)
        self.find((), ())

    def find(self, raw: Iterable[AddedToken], normalized: Iterable[AddedToken]) -> None:
        """Set the added tokens to search for.

        Args:
            raw: Tokens to find in the original text.
            normalized: Tokens to find in the text between those of `raw`, after that text
                is normalized. Their own text must already be normalized.

        Source: huggingface/tokenizers src/tokenizer/added_vocabulary.rs, v0.23.
        """
        self._raw = AddedTokenFinder(raw)
        self._normalized = AddedTokenFinder(normalized)

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Encode text that has no surrogates.

        `first` states whether the text is at the beginning of the prompt.
        """
        ids: list[int] = []
        for outer, outer_start, token_id in self._raw.split(text):
            if token_id is not None:
                ids.append(token_id)
                continue
            for inner, start, token_id in self._normalized.split(self.normalize(outer)):
                if token_id is not None:
                    ids.append(token_id)
                    continue
                ids += self.encode_normalized(
                    inner, first=first and outer_start == start == 0
                )
        return ids

    @abstractmethod
    def normalize(self, text: str) -> str:
        """Normalize text that contains no added tokens."""

    @abstractmethod
    def encode_normalized(self, text: str, *, first: bool) -> list[int]:
        """Encode normalized text that contains no added tokens."""

    def encode_pieces(self, pieces: list[str]) -> list[int]:
        """Encode pieces that have no lone surrogates, and concatenate their ids."""
        cached = self._encode_cached
        ids = list[int]()
        for piece in pieces:
            ids += (cached if len(piece) <= CACHED_PIECE_CHARS else self._encode_piece)(
                piece
            )
        return ids

    def _encode_parts(self, piece: _Symbols) -> list[int]:
        """Encode a piece in parts that no merge crosses.

        Random bytes split into parts of only a few bytes.
        """
        ids = list[int]()
        adjacent = self._adjacent
        # No merge crosses these positions. They come from a generator, because there may
        # be one per symbol.
        cuts = (at for at, pair in enumerate(pairwise(piece), 1) if pair not in adjacent)
        for start, end in pairwise(chain((0,), cuts, (len(piece),))):
            is_short = end - start <= CACHED_PART_SYMBOLS
            ids += (self._merge_cached if is_short else self._merge_part)(
                piece[start:end]
            )
        return ids

    @abstractmethod
    def _encode_piece(self, piece: str) -> list[int]: ...

    @abstractmethod
    def _merge_part(self, part: _Symbols) -> list[int]: ...


def _in_order(marks: re.Match[str]) -> str:
    """Sort combining marks canonically, because `unicodedata` takes quadratic time."""
    decomposed = "".join(unicodedata.normalize("NFD", mark) for mark in marks[0])
    runs = groupby(decomposed, key=lambda mark: unicodedata.combining(mark) > 0)
    return "".join(m for _, run in runs for m in sorted(run, key=unicodedata.combining))


@dataclass(frozen=True)
class ByteLevelPipeline:
    """The steps that precede byte-level BPE."""

    pre_tokenizer: PreTokenizer  # splits the text into pieces
    composes: bool = False  # whether the text is first converted to normalization form C


class ByteLevelEncoder(PieceEncoder[bytes]):
    """Byte-level BPE, which starts with the UTF-8 bytes of each piece.

    `tokens` contains the id of every token that text can encode to. Bytes without a token
    are dropped.
    """

    def __init__(
        self,
        tokens: Mapping[bytes, int],
        merges: Merges,
        pipeline: ByteLevelPipeline,
        *,
        # Whether a piece that is itself a token bypasses the merges.
        whole: bool,
    ) -> None:
        super().__init__(adjacent_bytes(tokens))
        self._merges = merges
        self._pipeline = pipeline
        self._wholes: Mapping[bytes, int] = tokens if whole else {}
        self._byte_ids = [tokens.get(bytes([byte]), -1) for byte in range(256)]
        self._missing = bytes(byte for byte in range(256) if self._byte_ids[byte] < 0)

    def normalize(self, text: str) -> str:
        """Normalize text that contains no added tokens."""
        if not self._pipeline.composes or text.isascii():
            return text
        return unicodedata.normalize("NFC", _LONG_MARKS.sub(_in_order, text))

    def encode_normalized(
        self,
        text: str,
        *,
        first: bool,  # noqa: ARG002 (only the other encoder uses it)
    ) -> list[int]:
        """Encode text that contains no added tokens."""
        ids: list[int] = []
        for pieces in self._pipeline.pre_tokenizer.split(text):
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


def adjacent_bytes(tokens: Collection[bytes]) -> set[tuple[int, int]]:
    """Return all pairs of bytes that are adjacent within any token.

    No merge crosses any other pair, so the two sides of such a pair can be encoded
    separately. `tokens` must not be empty.
    """
    data = np.frombuffer(b"".join(tokens), dtype=np.uint8).astype(np.uint16)
    within = np.ones(len(data), dtype=np.bool_)
    # The last byte of each token is followed by a byte of another token.
    within[np.cumsum([len(token) for token in tokens]) - 1] = False
    # np.unique would import numpy.ma, which takes longer than loading a small model.
    counts = np.bincount((data[:-1] << 8 | data[1:])[within[:-1]])
    return {divmod(pair, 256) for pair in np.flatnonzero(counts).tolist()}


class PrependScheme(Enum):
    """When to prepend a metaspace; it is never prepended to an empty string."""

    ALWAYS = "every text"
    UNLESS_THERE = "every text that does not start with one"
    FIRST_UNLESS_THERE = "the first text of a prompt, unless it starts with one"
    NEVER = "none"


def replace_spaces(text: str, scheme: PrependScheme, *, first: bool = True) -> str:
    """Replace spaces with metaspaces, and prepend a metaspace according to the scheme.

    `first` states whether the text is at the beginning of the prompt.
    """
    text = text.replace(" ", METASPACE)
    is_kept = scheme is not PrependScheme.ALWAYS and text.startswith(METASPACE)
    is_later = scheme is PrependScheme.FIRST_UNLESS_THERE and not first
    if not text or scheme is PrependScheme.NEVER or is_kept or is_later:
        return text
    return METASPACE + text


@dataclass(frozen=True)
class MetaspacePipeline:
    """The steps before and after SentencePiece-style BPE."""

    # Whether spaces are replaced before searching for added tokens rather than after.
    normalizes: bool
    scheme: PrependScheme  # when to prepend a metaspace
    words: bool  # whether words are encoded separately, even if that changes the ids
    drops_first_space: bool  # whether decoding drops a leading space


class MetaspaceEncoder(PieceEncoder[str]):
    """SentencePiece-style BPE, which starts with the characters of each piece.

    `symbols` is the result of `character_symbols`. `tokens` contains the id of every
    token that text can encode to. `byte_ids` contains the ids of the 256 byte tokens,
    which encode the characters that have no token.
    """

    def __init__(
        self,
        symbols: Mapping[str, int],
        tokens: Mapping[str, int],
        merges: Merges,
        byte_ids: Sequence[int],
        pipeline: MetaspacePipeline,
        *,
        # Whether a piece that is itself a token bypasses the merges.
        whole: bool,
    ) -> None:
        super().__init__(set(chain.from_iterable(map(pairwise, tokens))))
        self._symbols = symbols
        self._merges = merges
        self._byte_ids = byte_ids
        self._pipeline = pipeline
        self._wholes: Mapping[str, int] = tokens if whole else {}
        # With `whole`, a token of several words can only match if the text is one piece.
        self._words = pipeline.words or (not whole and words_are_independent(tokens))
        self._placeholders = {
            number: c for c, number in symbols.items() if c not in tokens
        }

    def normalize(self, text: str) -> str:
        """Normalize text that contains no added tokens."""
        return (
            replace_spaces(text, self._pipeline.scheme)
            if self._pipeline.normalizes
            else text
        )

    def encode_normalized(self, text: str, *, first: bool) -> list[int]:
        """Encode text that contains no added tokens."""
        if not self._pipeline.normalizes:
            text = replace_spaces(text, self._pipeline.scheme, first=first)
        if not self._words or METASPACE not in text.lstrip(METASPACE):  # nothing to split
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


def words_are_independent(tokens: Iterable[str]) -> bool:
    """Return whether no token extends across a word boundary."""
    return not any(METASPACE in token.lstrip(METASPACE) for token in tokens)


def character_symbols(tokens: Mapping[str, int], first_free: int) -> dict[str, int]:
    """Return a symbol for each character that occurs in a token.

    The symbol is the id of the single-character token, or a placeholder if no such token
    exists. Placeholders start at `first_free`, the first integer that is not an id.
    """
    free = count(first_free)
    return {
        c: tokens[c] if c in tokens else next(free) for c in sorted(set("".join(tokens)))
    }


def byte_token_text(byte: int) -> str:
    """Return the name of the token for a byte, such as `<0x0A>`."""
    return f"<0x{byte:02X}>"
