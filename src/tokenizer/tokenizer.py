"""Text to token ids and back: what all kinds of tokenizers have in common."""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from ..ml.errors import declared_lack_of_memory
from .errors import TokenizerError, TokenizerMemoryError, shown

_ESCAPED_BYTES = re.compile("[\udc80-\udcff]")


class TextEncoder(Protocol):
    """The part in which kinds of tokenizers differ: text without surrogates to ids."""

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Encode text, none of it as a special token."""
        ...


@dataclass(frozen=True)
class Roles:
    """What the special ids of a vocabulary are for.

    Attributes:
        bos_id: begins a text; None where the vocabulary has no such token.
        eos_id: ends a text; likewise.
        stop_ids: what a model may end its answer with.
        adds_bos: whether texts for the model begin with `bos_id`.
    """

    bos_id: int | None = None
    eos_id: int | None = None
    stop_ids: frozenset[int] = frozenset()
    adds_bos: bool = False


@dataclass(frozen=True)
class Decoding:
    """How ids become text again.

    Attributes:
        drops_first_space: one space at the beginning of a text was put there by encoding.
        drops_more_spaces: tokens that are nothing but such a space do not begin the text.
        unknown_id: stands for text that has no token; a text may begin with it.
        own_space_ids: tokens whose space is the text's own.
        mark_per_byte: every byte that is no UTF-8 becomes U+FFFD, as SentencePiece has it;
            otherwise each longest beginning of a character becomes one, as tiktoken has it.
    """

    drops_first_space: bool = False
    drops_more_spaces: bool = False
    unknown_id: int | None = None
    own_space_ids: frozenset[int] = frozenset()
    mark_per_byte: bool = False


class Tokenizer:
    """A tokenizer of any kind.

    Args:
        token_bytes: the bytes of every id 0, 1, 2...; those of special ids are their names.
        special_tokens: the id of each special name.
        encoder: turns text into ids.
        roles: what special ids are for.
        decoding: how ids become text again.

    Attributes:
        vocab_size: V, the number of ids.
        special_tokens: the id of each special name.
        stop_ids: the ids a model may end its answer with.
        adds_bos: whether texts for the model begin with `bos_id`.
        decoding: how ids become text again.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special_tokens: Mapping[str, int],
        encoder: TextEncoder,
        roles: Roles,
        decoding: Decoding,
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

    def __repr__(self) -> str:
        kind = type(self._encoder).__name__
        return f"Tokenizer({self.vocab_size} ids, {len(self.special_tokens)} special, {kind})"

    def padded_to(self, rows: int) -> "Tokenizer":
        """Give the same tokenizer for a model that has more rows than there are tokens.

        The ids beyond the last token decode to nothing, and no text becomes one of them.

        Args:
            rows: V of the model, at least that of the tokenizer.
        """
        padded = copy(self)
        padded._token_bytes = [*self._token_bytes, *[b""] * (rows - self.vocab_size)]
        padded.vocab_size = rows
        return padded

    @property
    def bos_id(self) -> int:
        """The id that begins a text.

        Raises:
            TokenizerError: where the vocabulary has none.
        """
        return _required(self._roles.bos_id, "begins a text")

    @property
    def eos_id(self) -> int:
        """The id that ends a text.

        Raises:
            TokenizerError: where the vocabulary has none.
        """
        return _required(self._roles.eos_id, "ends a text")

    def encode(self, text: str, *, bos: bool, eos: bool, first: bool = True) -> list[int]:
        """Encode text. What looks like a special token in it is text like any other.

        Args:
            text: any string; a lone surrogate is read as U+FFFD, and a pair of surrogates as
                the character they stand for, as tiktoken does.
            bos: whether `bos_id` goes before.
            eos: whether `eos_id` goes after.
            first: whether nothing stands before the text. Some SentencePiece-style tokenizers put
                a space before the first text of a prompt and before no other; for all others it
                makes no difference.

        Returns:
            The token ids.

        Raises:
            TokenizerMemoryError: where the system gives no memory.
            TokenizerError: for anything but a string, or an id that the vocabulary does not have.
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
        """Decode ids; a special id becomes its name, bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: each 0 <= id < V.

        Returns:
            The text, without the one space that a SentencePiece-style tokenizer puts before it.

        Raises:
            TokenizerMemoryError: where the system gives no memory.
            TokenizerError: for an id outside the vocabulary.
        """
        parts: list[bytes] = []
        at_start = self.decoding.drops_first_space
        for token_id in ids:
            data, at_start = self.text_bytes(token_id, at_start=at_start)
            parts.append(data)
        return self.text_of(b"".join(parts))

    def text_bytes(self, token_id: int, *, at_start: bool) -> tuple[bytes, bool]:
        """Look up the bytes that a token gives in a text.

        Args:
            token_id: 0 <= token_id < V.
            at_start: whether the text has still to begin, and its first space is to be dropped.

        Returns:
            The bytes, and whether the text has still to begin.

        Raises:
            TokenizerError: for an id outside the vocabulary.
        """
        data = self.token_bytes(token_id)
        unknown = token_id == self.decoding.unknown_id
        if not at_start or not data or (self.is_special(token_id) and not unknown):
            return data, at_start
        if token_id not in self.decoding.own_space_ids:
            data = data.removeprefix(b" ")
        return data, self.decoding.drops_more_spaces and not data

    def text_of(self, data: bytes) -> str:
        """Decode bytes as UTF-8; what is none becomes U+FFFD."""
        if self.decoding.mark_per_byte:
            return _ESCAPED_BYTES.sub("\ufffd", data.decode(errors="surrogateescape"))
        return data.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Look up the bytes of a token.

        Args:
            token_id: 0 <= token_id < V.

        Returns:
            The bytes; a special token's are its name. They need not be whole characters.

        Raises:
            TokenizerError: for an id outside the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(
                f"[decode] 0 <= id < V must hold: got id {token_id}, V = {self.vocab_size}"
            )
        return self._token_bytes[token_id]

    def special_id(self, name: str) -> int:
        """Look up the id of a special token.

        Args:
            name: such as `<|eot_id|>`.

        Returns:
            Its id.

        Raises:
            TokenizerError: for a name that is none of the special tokens.
        """
        try:
            return self.special_tokens[name]
        except KeyError:
            raise TokenizerError(f"[special_id] no special token '{shown(name)}'") from None

    def is_special(self, token_id: int) -> bool:
        """Tell whether an id is a special one, which no text is encoded to."""
        return token_id in self._special_ids


def _required(token_id: int | None, purpose: str) -> int:
    if token_id is None:
        raise TokenizerError(f"[encode] no token of the vocabulary {purpose}")
    return token_id


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
