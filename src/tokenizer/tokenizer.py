"""Text to token ids and back, at once or id by id: what all kinds of tokenizers share."""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from ..ml.errors import declared_lack_of_memory
from ..untrusted import shown
from .encoders import PieceEncoder
from .errors import TokenizerError, TokenizerMemoryError

_ESCAPED_BYTES = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True)
class Roles:
    """What the special ids of a vocabulary are for."""

    bos_id: int | None = None  # begins a text; None if the vocabulary has no such token
    eos_id: int | None = None  # ends a text; None in the same case
    stop_ids: frozenset[int] = frozenset()  # what a model may end its answer with
    adds_bos: bool = False  # whether texts for the model begin with `bos_id`


@dataclass(frozen=True)
class Decoding:
    """How ids become text again."""

    drops_first_space: bool = (
        False  # one at the beginning of a text was put there by encoding
    )
    unknown_id: int | None = None  # no text becomes it, but a text may begin with it
    kept_space_ids: frozenset[int] = frozenset()  # tokens whose space belongs to the text
    # Every byte that is not UTF-8 becomes U+FFFD, as in SentencePiece; otherwise each
    # longest beginning of a character becomes one, as in tiktoken.
    replaces_each_byte: bool = False

    @property
    def errors(self) -> str:
        """How Python's UTF-8 decoders treat invalid bytes; escaped ones become U+FFFD
        after it.
        """
        return "surrogateescape" if self.replaces_each_byte else "replace"


class Tokenizer:
    """A tokenizer of any kind.

    Args:
        token_bytes: The bytes of every id 0, 1, 2...; those of special ids are their
            names.
        special_tokens: The id of each special name.
        encoder: Turns text into ids; the part in which kinds of tokenizers differ.
        roles: What special ids are for.
        decoding: How ids become text again.
        spaces_taken: The special names that take the white space to their left and to
            their right, where a template writes them.

    Attributes:
        vocab_size: V, the number of ids.
        stop_ids: The ids a model may end its answer with.
        adds_bos: Whether texts for the model begin with `bos_id`.
        special_tokens, decoding, spaces_taken: As they were given.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special_tokens: Mapping[str, int],
        encoder: PieceEncoder[Any],
        roles: Roles,
        decoding: Decoding,
        spaces_taken: Mapping[str, tuple[bool, bool]] = MappingProxyType({}),
    ) -> None:
        self._token_bytes = token_bytes
        self._encoder = encoder
        self._roles = roles
        self._special_ids = frozenset(special_tokens.values())
        self.vocab_size = len(token_bytes)
        self.special_tokens: Mapping[str, int] = MappingProxyType(dict(special_tokens))
        self.stop_ids = roles.stop_ids
        self.adds_bos = roles.adds_bos
        self.decoding = decoding
        self.spaces_taken = spaces_taken

    def __repr__(self) -> str:
        kind = type(self._encoder).__name__
        return (
            f"Tokenizer({self.vocab_size} ids, {len(self.special_tokens)} special, "
            f"{kind})"
        )

    def padded_to(self, rows: int) -> "Tokenizer":
        """Return the same tokenizer for a model that has more rows than there are tokens.

        The ids beyond the last token decode to nothing, and no text becomes one of them.

        Args:
            rows: V of the model, at least that of the tokenizer.
        """
        padded = copy(self)
        padded._token_bytes = [*self._token_bytes, *[b""] * (rows - self.vocab_size)]
        padded.vocab_size = rows
        return padded

    def cut_to(self, rows: int) -> "Tokenizer":
        """Return the same tokenizer for a format that has no ids beyond the rows of a
        model.

        Args:
            rows: V of the model.

        Raises:
            TokenizerError: A text becomes one of the tokens that would be cut off.
        """
        for token_id in range(rows, self.vocab_size):
            if not self.is_special(token_id):
                name = shown(self.text_of(self._token_bytes[token_id]))
                rule = f"expected at most {rows}, or special ones beyond"
                raise TokenizerError(
                    f"tokens: {rule}, got {self.vocab_size}, one of them {name}"
                )
        special = {
            name: number for name, number in self.special_tokens.items() if number < rows
        }
        known = {*range(min(rows, self.vocab_size))}
        roles = Roles(
            bos_id=self._roles.bos_id if self._roles.bos_id in known else None,
            eos_id=self._roles.eos_id if self._roles.eos_id in known else None,
            stop_ids=self._roles.stop_ids & known,
            adds_bos=self._roles.adds_bos and self._roles.bos_id in known,
        )
        decoding = replace(
            self.decoding, kept_space_ids=self.decoding.kept_space_ids & known
        )
        return Tokenizer(
            self._token_bytes[:rows],
            special,
            self._encoder,
            roles,
            decoding,
            self.spaces_taken,
        )

    @property
    def bos_id(self) -> int:
        """The id that begins a text.

        Raises:
            TokenizerError: The vocabulary has none.
        """
        return _required(self._roles.bos_id, "begins a text")

    @property
    def eos_id(self) -> int:
        """The id that ends a text.

        Raises:
            TokenizerError: The vocabulary has none.
        """
        return _required(self._roles.eos_id, "ends a text")

    def encode(
        self, text: str, *, bos: bool = False, eos: bool = False, first: bool = True
    ) -> list[int]:
        """Encode text. What looks like a special token in it is text like any other.

        Args:
            text: Any string; a lone surrogate is read as U+FFFD, and a pair of surrogates
                as the character they stand for, as tiktoken does.
            bos: Whether `bos_id` is put before the text.
            eos: Whether `eos_id` is put after the text.
            first: Whether nothing comes before the text. Some SentencePiece-style
                tokenizers put a space before the first text of a prompt only; for all
                others it makes no difference.

        Returns:
            The token ids.

        Raises:
            TokenizerMemoryError: The system refused memory.
            TokenizerError: `text` is not a string, or the vocabulary has no such id.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"[encode] text must be str: got {type(text).__name__}")
        ids = [self.bos_id] if bos else []
        with declared_lack_of_memory("encode", TokenizerMemoryError):
            ids += self._encoder.encode(_without_surrogates(text), first=first)
        if eos:
            ids.append(self.eos_id)
        return ids

    @declared_lack_of_memory("decode", TokenizerMemoryError)
    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; a special id becomes its name, bytes that are not UTF-8 become
        U+FFFD.

        Args:
            ids: Each 0 <= id < V.

        Returns:
            The text, without the one space that a SentencePiece-style tokenizer puts
            before it.

        Raises:
            TokenizerMemoryError: The system refused memory.
            TokenizerError: The id is outside the vocabulary.
        """
        parts: list[bytes] = []
        at_start = self.decoding.drops_first_space
        for token_id in ids:
            data, at_start = self.text_bytes(token_id, at_start=at_start)
            parts.append(data)
        return self.text_of(b"".join(parts))

    def text_bytes(self, token_id: int, *, at_start: bool) -> tuple[bytes, bool]:
        """Look up the bytes of a token in a text.

        Args:
            token_id: 0 <= token_id < V.
            at_start: Whether the text has not begun, and its first space is to be
                dropped.

        Returns:
            The bytes, and whether the text still has not begun.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        data = self.token_bytes(token_id)
        unknown = token_id == self.decoding.unknown_id
        if not at_start or not data or (self.is_special(token_id) and not unknown):
            return data, at_start
        if token_id not in self.decoding.kept_space_ids:
            data = data.removeprefix(b" ")
        return data, False

    def text_of(self, data: bytes) -> str:
        """Decode bytes as UTF-8; what is not UTF-8 becomes U+FFFD."""
        return _ESCAPED_BYTES.sub("\ufffd", data.decode(errors=self.decoding.errors))

    def first_difference(self, other: "Tokenizer") -> int | None:
        """Return the first id that stands for other bytes in another tokenizer, or None.

        Ids beyond the last token of one of them stand for no bytes.
        """
        pairs = zip_longest(self._token_bytes, other._token_bytes, fillvalue=b"")
        return next(
            (token for token, (mine, theirs) in enumerate(pairs) if mine != theirs), None
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Look up the bytes of a token.

        Args:
            token_id: 0 <= token_id < V.

        Returns:
            The bytes; a special token's are its name. They need not be whole characters.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(
                f"[decode] 0 <= id < V must hold: got id {token_id}, V = "
                f"{self.vocab_size}"
            )
        return self._token_bytes[token_id]

    def is_special(self, token_id: int) -> bool:
        """Tell whether an id is special: no text is encoded to it."""
        return token_id in self._special_ids


def _required(token_id: int | None, purpose: str) -> int:
    if token_id is None:
        raise TokenizerError(
            f"[encode] the vocabulary must have a token that {purpose}: got none"
        )
    return token_id


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class StreamDecoder:
    """Decode ids as they come; joined, the texts are those of `decode` for all ids at
    once.

    A character whose bytes are spread over several tokens comes out with the token that
    completes it. Bytes that become no character come out as U+FFFD, at the latest with
    the next token.

    Args:
        tokenizer: Knows the bytes of each id.
        first: Whether the ids begin a text. A SentencePiece-style tokenizer puts a space
            before a text, which is not shown; ids that continue a text keep their spaces.
    """

    def __init__(self, tokenizer: Tokenizer, *, first: bool = True) -> None:
        self._tokenizer = tokenizer
        self._first = first and tokenizer.decoding.drops_first_space
        self._at_start = self._first
        self._decoder = getincrementaldecoder("utf-8")(tokenizer.decoding.errors)

    def push(self, token_id: int) -> str:
        """Take the next id and return the text that is complete with it.

        Args:
            token_id: 0 <= token_id < V.

        Returns:
            New text, empty if the id only begins or continues a character.

        Raises:
            TokenizerError: The id is outside the vocabulary; nothing is lost by it.
        """
        data, self._at_start = self._tokenizer.text_bytes(
            token_id, at_start=self._at_start
        )
        return _ESCAPED_BYTES.sub("\ufffd", self._decoder.decode(data))

    def finish(self) -> str:
        """End the text: U+FFFD for a character that was begun and never completed, or
        nothing.

        Returns:
            The rest of the text. The decoder is ready for another one.
        """
        rest = self._decoder.decode(b"", final=True)
        self._at_start = self._first
        self._decoder.reset()
        return _ESCAPED_BYTES.sub("\ufffd", rest)
