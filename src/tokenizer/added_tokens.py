"""Tokens that are added to a vocabulary and found in text before anything else.

Special tokens are left in the text: it never becomes a special id. An added token that is not
special is, for example, `<think>`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import regex

from .encoders import PieceEncoder
from .errors import TokenizerError

_SPACES_BEFORE, _SPACES_AFTER = regex.compile(r"(?r)\s*"), regex.compile(r"\s*")

# Nodes of the automaton, about 200 bytes each. Llama 3's 256 added tokens have 7438 letters.
_MOST_NODES = 1 << 20
_LETTER_BITS = 21  # of a character
_LETTER = (1 << _LETTER_BITS) - 1


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


class _Automaton:
    """Find the longest of many texts that starts at each place, in one step per letter on average.

    It is the automaton of Aho and Corasick for the texts read backwards. A state stands for the
    letters read last, as many as end a text; it knows the longest whole text among them.

    Source: Aho and Corasick, Efficient string matching, CACM 18 (1975).
    """

    def __init__(self, texts: Iterable[str]) -> None:
        next_states: dict[int, int] = {}  # by state << _LETTER_BITS | letter
        keys, depths, lengths = [0], [0], [0]
        for text in texts:
            state = 0
            for depth, letter in enumerate(map(ord, reversed(text)), 1):
                key = state << _LETTER_BITS | letter
                state = next_states.setdefault(key, len(keys))
                if state == len(keys):
                    if state > _MOST_NODES:
                        rule = f"at most {_MOST_NODES} letters that no other one shares"
                        raise TokenizerError(f"added tokens: expected {rule}, got more")
                    keys.append(key)
                    depths.append(depth)
                    lengths.append(0)
            lengths[state] = len(text)
        self._next_states, self._lengths = next_states, lengths
        self._shorter = [0] * len(keys)  # the state that stands for the same letters but the first
        for state in sorted(range(1, len(keys)), key=depths.__getitem__):
            if depths[state] > 1:
                before = self._shorter[keys[state] >> _LETTER_BITS]
                self._shorter[state] = self._after(before, keys[state] & _LETTER)
            lengths[state] = lengths[state] or lengths[self._shorter[state]]

    def starts(self, text: str, start: int, stop: int) -> dict[int, int]:
        """Return the length of the longest text at each place where one starts, from the right."""
        state, found = 0, {}
        for at in range(stop - 1, start - 1, -1):
            state = self._after(state, ord(text[at]))
            if self._lengths[state]:
                found[at] = self._lengths[state]
        return found

    def _after(self, state: int, letter: int) -> int:
        """Return the state after one more letter, further to the left."""
        while True:
            following = self._next_states.get(state << _LETTER_BITS | letter)
            if following is not None or not state:
                return following or 0
            state = self._shorter[state]


class AddedTokenFinder:
    """Find added tokens in text: of several at one place the longest, from left to right.

    Special ones are found too, so that no other one is seen inside of them, and left in the text.
    TokenizerError where there are too many.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        self._automaton = _Automaton(self._tokens)
        self._longest = max(map(len, self._tokens), default=0)
        letters = "".join(map(regex.escape, dict.fromkeys(text[0] for text in self._tokens)))
        self._first_letter = regex.compile(f"[{letters}]") if letters else None

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
        for start, stop in self._regions(text):
            lengths, done = self._automaton.starts(text, start, stop), start
            for at in reversed(lengths):
                if at >= done:
                    done = at + lengths[at]
                    yield at, self._tokens[text[at:done]]

    def _regions(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where tokens may be: from a first letter as far as the longest one reaches."""
        start = stop = 0
        for found in self._first_letter.finditer(text) if self._first_letter else ():
            if found.start() >= stop:
                if start < stop:
                    yield start, stop
                start = found.start()
            stop = found.start() + self._longest
        if start < stop:
            yield start, min(stop, len(text))


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
