"""Tokens that are added to a vocabulary and found in text before anything else.

Special tokens are left in the text: it never becomes a special id. An added token that is not
special is, for example, `<think>`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import regex

from .encoders import PieceEncoder
from .errors import TokenizerError

_SPACES_BEFORE, _SPACES_AFTER = regex.compile(r"(?r)\s*"), regex.compile(r"\s*")

# Llama 3's 256 added tokens have 7438.
_MOST_LETTERS = 1 << 20


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before anything merges."""

    text: str  # what it looks like
    token_id: int
    special: bool  # if text spells a special one, it stays text
    normalized: bool = False  # looked for in the normalized text, not in the text as it is
    takes_left: bool = False  # the spaces before it
    takes_right: bool = False  # the spaces after it


Segment = tuple[str, int, int | None]
"""A part of a text, where it starts, and its id if it is an added token."""


class AddedTokenFinder:
    """Find added tokens in text: of several at one place the longest, from left to right.

    Special ones are found too, so that no other one is seen inside of them, and left in the text.
    TokenizerError where there are too many.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        self._sorted = sorted(self._tokens)
        self._nested: list[list[int]] = []  # lengths of the tokens that each begins with
        letters = sum(map(len, self._sorted))
        if letters > _MOST_LETTERS:
            rule = f"at most {_MOST_LETTERS} letters in all"
            raise TokenizerError(f"added tokens: expected {rule}, got {letters}")
        nested: list[str] = []
        for text in self._sorted:
            while nested and not text.startswith(nested[-1]):
                nested.pop()
            nested.append(text)
            self._nested.append([*map(len, nested)])
        self._longest = max(map(len, self._sorted), default=0)
        firsts = "".join(map(regex.escape, {text[0] for text in self._sorted}))
        seconds = {text[1:2] for text in self._sorted}
        second = "" if "" in seconds else f"(?=[{''.join(map(regex.escape, seconds))}])"
        self._beginning = regex.compile(f"[{firsts}]{second}") if firsts else None

    def split(self, text: str) -> Iterator[Segment]:
        """Cut a text at the added tokens that are not special; no part is empty."""
        done, spaces = 0, range(0)
        for start, token in self._matches(text):
            if token.special:
                continue
            end = start + len(token.text)
            if token.takes_left:
                start = done if start < done else _SPACES_BEFORE.match(text, done, start).start()
            if token.takes_right:
                if end not in spaces:  # which were not looked through yet
                    spaces = range(end, _SPACES_AFTER.match(text, end).end() + 1)
                end = spaces.stop - 1
            if done < start:
                yield text[done:start], done, None
            # The token before may have taken spaces that are a token of their own.
            yield text[max(start, done) : end], start, token.token_id
            done = end
        if done < len(text):
            yield text[done:], done, None

    def _matches(self, text: str) -> Iterator[tuple[int, AddedToken]]:
        """Yield where tokens start.

        One that starts at a place is the last that is not beyond the text there, in the order of
        texts, or what this one begins with.
        """
        done = 0
        for found in self._beginning.finditer(text) if self._beginning else ():
            at = found.start()
            if at < done:
                continue
            # If all are beyond, the very last one is looked at, which is not there either.
            place = bisect_right(self._sorted, text[at : at + self._longest]) - 1
            last, lengths = self._sorted[place], self._nested[place]
            known = bisect_left(lengths, True, key=lambda n: not text.startswith(last[:n], at))
            if known:
                done = at + lengths[known - 1]
                yield at, self._tokens[text[at:done]]


class AddedTokensEncoder:
    """Encode text around the added tokens in it.

    Those of `raw` are found in the text as it is, and what is between them is normalized part by
    part; those of `normalized`, whose texts are so already, are found in these parts.

    Source: huggingface/tokenizers src/tokenizer/added_vocabulary.rs, v0.23.
    """

    def __init__(
        self,
        encoder: PieceEncoder[Any],
        raw: Iterable[AddedToken],
        normalized: Iterable[AddedToken],
    ) -> None:
        self._encoder, self._raw = encoder, AddedTokenFinder(raw)
        self._normalized = AddedTokenFinder(normalized)

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Encode text; `first` applies to the part that starts where the text does."""
        ids: list[int] = []
        for outer, outer_start, token_id in self._raw.split(text):
            if token_id is not None:
                ids.append(token_id)
                continue
            for inner, start, token_id in self._normalized.split(self._encoder.normalize(outer)):
                if token_id is not None:
                    ids.append(token_id)
                    continue
                at_start = first and outer_start == start == 0
                ids += self._encoder.encode_normalized(inner, first=at_start)
        return ids
