"""Tokens that are added to a vocabulary and found in text before anything else.

Special ones are not among what is found: text never becomes a special id. An added token that is
not special is a word of its own, such as `<think>`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import regex

_SPACES_BEFORE, _SPACES_AFTER = regex.compile(r"(?r)\s*"), regex.compile(r"\s*")


class NormalizedEncoder(Protocol):
    """An encoder in two steps, between which added tokens are looked for."""

    def normalize(self, text: str) -> str:
        """Prepare a text, or what is between two added tokens of it."""
        ...

    def encode_normalized(self, text: str, *, first: bool) -> list[int]:
        """Encode prepared text that holds no added token."""
        ...


@dataclass(frozen=True)
class AddedToken:
    """A token with an id of its own, whatever the merges are.

    Attributes:
        text: what it looks like.
        token_id: its id.
        special: a special token. Where text spells it, it stays text.
        normalized: looked for in the normalized text, not in the text as it is.
        takes_left: takes the spaces before it.
        takes_right: takes the spaces after it.
    """

    text: str
    token_id: int
    special: bool
    normalized: bool = False
    takes_left: bool = False
    takes_right: bool = False


@dataclass(frozen=True)
class Segment:
    """A part of a text: an added token, or what is between two of them.

    Attributes:
        text: the part.
        start: where it starts.
        token_id: that of the added token, or None.
    """

    text: str
    start: int
    token_id: int | None = None


class AddedTokenFinder:
    """Find added tokens in text: of several at one place the longest, from left to right.

    Args:
        tokens: by the texts to look for. Special ones are found too, so that no other one is seen
            inside of them, and left in the text.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        lengths: dict[str, set[int]] = {}
        for text in self._tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {letter: sorted(sizes)[::-1] for letter, sizes in lengths.items()}
        letters = "".join(map(regex.escape, self._lengths))
        self._first_letter = regex.compile(f"[{letters}]") if letters else None

    def split(self, text: str) -> Iterator[Segment]:
        """Cut a text at the added tokens that are not special; no part is empty."""
        done = 0
        for start, token in self._matches(text):
            if token.special:
                continue
            end = start + len(token.text)
            if token.takes_left:
                start = max(done, _SPACES_BEFORE.match(text, 0, start).start())
            if token.takes_right:
                end = _SPACES_AFTER.match(text, end).end()
            if done < start:
                yield Segment(text[done:start], done)
            yield Segment(text[start:end], start, token.token_id)
            done = end
        if done < len(text):
            yield Segment(text[done:], done)

    def _matches(self, text: str) -> Iterator[tuple[int, AddedToken]]:
        at = 0
        while self._first_letter is not None:
            found = self._first_letter.search(text, at)
            if found is None:
                return
            at = found.start()
            for length in self._lengths[text[at]]:
                token = self._tokens.get(text[at : at + length])
                if token is not None:
                    yield at, token
                    at += length
                    break
            else:
                at += 1


class PlainText:
    """Encode text in which no added tokens are looked for.

    Args:
        encoder: does the two steps.
    """

    def __init__(self, encoder: NormalizedEncoder) -> None:
        self._encoder = encoder

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Encode text."""
        return self._encoder.encode_normalized(self._encoder.normalize(text), first=first)


class TextWithAddedTokens:
    """Encode text around the added tokens in it.

    Those that are not normalized are found in the text as it is, and what is between them is
    normalized part by part; the others are found in these parts.

    Args:
        encoder: encodes what is between.
        raw: finds tokens in the text as it is.
        normalized: finds tokens in normalized text.

    Source: huggingface/tokenizers src/tokenizer/added_vocabulary.rs, v0.23.
    """

    def __init__(
        self, encoder: NormalizedEncoder, raw: AddedTokenFinder, normalized: AddedTokenFinder
    ) -> None:
        self._encoder = encoder
        self._raw = raw
        self._normalized = normalized

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Encode text; `first` is for the part that starts where the text does."""
        ids: list[int] = []
        for outer in self._raw.split(text):
            if outer.token_id is not None:
                ids.append(outer.token_id)
                continue
            for inner in self._normalized.split(self._encoder.normalize(outer.text)):
                if inner.token_id is not None:
                    ids.append(inner.token_id)
                    continue
                at_start = first and outer.start == inner.start == 0
                ids += self._encoder.encode_normalized(inner.text, first=at_start)
        return ids
