"""The tokenizer class, which encodes text and decodes ids all at once or one by one."""

import operator
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from ..ml.errors import declared_lack_of_memory
from ..ml.hints import add_missing_names
from ..untrusted import shown
from .encoders import PieceEncoder
from .errors import TokenizerError, TokenizerMemoryError

_ESCAPED_BYTES = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True)
class Roles:
    """The roles of a vocabulary's special ids."""

    bos_id: int | None = None  # the beginning-of-text id
    eos_id: int | None = None  # the end-of-text id
    stop_ids: frozenset[int] = frozenset()  # ids that end an answer
    adds_bos: bool = False  # whether the model's input begins with `bos_id`


@dataclass(frozen=True)
class Decoding:
    """The rules for converting ids to text."""

    drops_first_space: bool = False  # whether encoding prepends a space
    unknown_id: int | None = None  # the only special id that can begin a text
    kept_space_ids: frozenset[int] = frozenset()  # tokens whose leading space is kept
    # Whether every invalid byte becomes one U+FFFD, as in SentencePiece. Otherwise, each
    # maximal incomplete character becomes one U+FFFD, as in tiktoken.
    replaces_each_byte: bool = False

    @property
    def errors(self) -> str:
        """The error handler for Python's UTF-8 decoders.

        Bytes that it escapes as surrogates are replaced by U+FFFD afterwards.
        """
        return "surrogateescape" if self.replaces_each_byte else "replace"


# Hints for names that tokenizers of transformers have.
_HINTS = {
    "apply_chat_template": "encode_chat(tokenizer, messages) of src.inference",
    "batch_decode": "decode each list of ids",
    "bos_token_id": "tokenizer.bos_id",
    "convert_ids_to_tokens": "decode each id: tokenizer.decode([token])",
    "convert_tokens_to_ids": "tokenizer.special_tokens has the ids of special tokens",
    "eos_token_id": "tokenizer.eos_id",
    "tokenize": "decode each id of tokenizer.encode(text)",
}


class Tokenizer:
    """A tokenizer for any supported vocabulary format.

    Args:
        token_bytes: The bytes of each token, indexed by id. For a special token, these
            are the bytes of its name.
        special_tokens: A mapping from the name of each special token to its id.
        encoder: The encoder from text to ids, which depends on the vocabulary format.
        roles: The roles of the special ids.
        decoding: The rules for converting ids to text.
        spaces_taken: A mapping from the name of a special token to two flags: whether the
            token absorbs the white space to its left and to its right in a template.

    Attributes:
        vocab_size: V, the number of ids.
        stop_ids: The ids that end an answer.
        adds_bos: Whether the model's input begins with `bos_id`.
        special_tokens, decoding, spaces_taken: The constructor arguments.
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
        """Return a copy of the tokenizer for a model with more rows than tokens.

        The additional ids decode to an empty string, and no text encodes to them.

        Args:
            rows: The model's vocabulary size, at least `vocab_size`.
        """
        padded = copy(self)
        padded._token_bytes = [*self._token_bytes, *[b""] * (rows - self.vocab_size)]
        padded.vocab_size = rows
        return padded

    def cut_to(self, rows: int) -> "Tokenizer":
        """Return a copy of the tokenizer without the ids that a model has no row for.

        Args:
            rows: The model's vocabulary size.

        Raises:
            TokenizerError: Text can encode to one of the removed ids.
        """
        for token_id in range(rows, self.vocab_size):
            if not self.is_special(token_id):
                name = shown(self.text_of(self._token_bytes[token_id]))
                raise TokenizerError(
                    f"tokens: expected at most {rows}, or only special ones beyond, got "
                    f"{self.vocab_size}, including {name}"
                )
        special = {
            name: number for name, number in self.special_tokens.items() if number < rows
        }
        kept_ids = {*range(min(rows, self.vocab_size))}
        roles = Roles(
            bos_id=self._roles.bos_id if self._roles.bos_id in kept_ids else None,
            eos_id=self._roles.eos_id if self._roles.eos_id in kept_ids else None,
            stop_ids=self._roles.stop_ids & kept_ids,
            adds_bos=self._roles.adds_bos and self._roles.bos_id in kept_ids,
        )
        decoding = replace(
            self.decoding, kept_space_ids=self.decoding.kept_space_ids & kept_ids
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
        """The beginning-of-text id.

        Raises:
            TokenizerError: The vocabulary has no such id.
        """
        return _required(self._roles.bos_id, "begins a text")

    @property
    def eos_id(self) -> int:
        """The end-of-text id.

        Raises:
            TokenizerError: The vocabulary has no such id.
        """
        return _required(self._roles.eos_id, "ends a text")

    def encode(
        self, text: str, *, bos: bool = False, eos: bool = False, first: bool = True
    ) -> list[int]:
        """Encode text; the name of a special token is encoded as ordinary text.

        `encode_prompt` encodes the names of special tokens as these tokens.

        Args:
            text: Any string. A lone surrogate is read as U+FFFD, and a surrogate pair as
                the character that it encodes, as in tiktoken.
            bos: Whether to prepend `bos_id`.
            eos: Whether to append `eos_id`.
            first: Whether `text` is at the beginning of the prompt. Some
                SentencePiece-style tokenizers prepend a space only there. Other
                tokenizers ignore this argument.

        Returns:
            The token ids.

        Raises:
            TokenizerMemoryError: Memory cannot be allocated.
            TokenizerError: `text` is not a string, or the vocabulary lacks the `bos` or
                `eos` id.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"[encode] text must be str: got {type(text).__name__}")
        ids = [self.bos_id] if bos else []
        with declared_lack_of_memory("encode", TokenizerMemoryError):
            ids += self._encoder.encode(_without_surrogates(text), first=first)
        if eos:
            ids.append(self.eos_id)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a prompt; the name of a special token becomes the id of this token.

        `<|begin_of_text|>` and all other names must be in the text, because no token is
        added. Text by users, tools or documents belongs into `encode` or
        `src.inference.encode_chat`, where it cannot become a special token.

        Args:
            text: Any string. Where names overlap, the longest one counts.

        Returns:
            The token ids.

        Raises:
            TokenizerMemoryError: Memory cannot be allocated.
            TokenizerError: `text` is not a string.
        """
        if not isinstance(text, str):
            raise TokenizerError(
                f"[encode_prompt] text must be str: got {type(text).__name__}"
            )
        names = sorted(filter(None, self.special_tokens), key=len, reverse=True)
        if not names:
            return self.encode(text)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        ids: list[int] = []
        for number, part in enumerate(parts):
            if number % 2:
                ids.append(self.special_tokens[part])
                continue
            after = (
                self.spaces_taken.get(parts[number + 1]) if parts[number + 1 :] else None
            )
            before = self.spaces_taken.get(parts[number - 1]) if number else None
            part = part.lstrip() if before and before[1] else part
            part = part.rstrip() if after and after[0] else part
            if part:
                ids += self.encode(part, first=not ids)
        return ids

    @declared_lack_of_memory("decode", TokenizerMemoryError)
    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text.

        Special ids become the names of their tokens, and invalid bytes become U+FFFD.

        Args:
            ids: The ids, each with 0 <= id < V.

        Returns:
            The text, without the space that a SentencePiece-style tokenizer prepends.

        Raises:
            TokenizerMemoryError: Memory cannot be allocated.
            TokenizerError: An id is outside the vocabulary.
        """
        if not isinstance(ids, Iterable):
            raise TokenizerError(
                f"[decode] ids must be a sequence of ids: got {type(ids).__name__}"
            )
        parts: list[bytes] = []
        at_start = self.decoding.drops_first_space
        for number in ids:
            token_id = _as_id(number)
            data, at_start = self.text_bytes(token_id, at_start=at_start)
            parts.append(data)
        return self.text_of(b"".join(parts))

    def text_bytes(self, token_id: int, *, at_start: bool) -> tuple[bytes, bool]:
        """Return the bytes that a token contributes to the decoded text.

        Args:
            token_id: The token's id, with 0 <= token_id < V.
            at_start: Whether the decoded text is still empty, so that a leading space is
                dropped.

        Returns:
            The bytes, and the value of `at_start` for the next token.

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
        """Decode bytes as UTF-8, replacing invalid bytes with U+FFFD."""
        return _ESCAPED_BYTES.sub("\ufffd", data.decode(errors=self.decoding.errors))

    def first_difference(self, other: "Tokenizer") -> int | None:
        """Return the first id whose bytes differ between two tokenizers, or None.

        An id beyond a tokenizer's last token counts as having no bytes.
        """
        pairs = zip_longest(self._token_bytes, other._token_bytes, fillvalue=b"")
        return next(
            (token for token, (mine, theirs) in enumerate(pairs) if mine != theirs), None
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token.

        Args:
            token_id: The token's id, with 0 <= token_id < V.

        Returns:
            The bytes, which may begin or end within a UTF-8 character. For a special
            token, they are the bytes of its name.

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
        """Return whether an id is special, which means that no text encodes to it."""
        return token_id in self._special_ids


add_missing_names(Tokenizer, _HINTS)


def _as_id(number: Any) -> int:
    """Return an id as a Python integer; raise TokenizerError for other types."""
    try:
        return operator.index(number)
    except TypeError:
        kind = type(number).__name__
        raise TokenizerError(f"[decode] an id must be an integer: got {kind}") from None


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
    """Decodes ids one at a time, with the same joined result as `Tokenizer.decode`.

    A character whose bytes are spread over several tokens is returned with the token that
    completes it. Bytes that cannot become a character are returned as U+FFFD, with the
    next token at the latest.

    Args:
        tokenizer: The tokenizer that the ids belong to.
        first: Whether the ids are at the beginning of the text, so that the space that a
            SentencePiece-style tokenizer prepends is dropped. If the ids continue earlier
            text, all spaces are kept.
    """

    def __init__(self, tokenizer: Tokenizer, *, first: bool = True) -> None:
        self._tokenizer = tokenizer
        self._first = first and tokenizer.decoding.drops_first_space
        self._at_start = self._first
        self._decoder = getincrementaldecoder("utf-8")(tokenizer.decoding.errors)

    def push(self, token_id: int) -> str:
        """Decode the next id and return the text that it completes.

        Args:
            token_id: The next id, with 0 <= token_id < V.

        Returns:
            The new text, which is empty if the token only begins or continues a
            character.

        Raises:
            TokenizerError: The id is outside the vocabulary. The decoder's state is
                unchanged.
        """
        data, self._at_start = self._tokenizer.text_bytes(
            token_id, at_start=self._at_start
        )
        return _ESCAPED_BYTES.sub("\ufffd", self._decoder.decode(data))

    def finish(self) -> str:
        """Finish decoding and reset the decoder for reuse.

        Returns:
            The remaining text: U+FFFD for an incomplete character, otherwise empty.
        """
        rest = self._decoder.decode(b"", final=True)
        self._at_start = self._first
        self._decoder.reset()
        return _ESCAPED_BYTES.sub("\ufffd", rest)
