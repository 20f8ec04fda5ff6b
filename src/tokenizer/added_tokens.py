"""Tokens that are added to a vocabulary and found in text before merging.

Special tokens are left in the text, which never encodes to a special id. An example of an
added token that is not special is `<think>`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import regex

from .errors import TokenizerError

_SPACES_BEFORE = regex.compile(r"(?r)\s*")
_SPACES_AFTER = regex.compile(r"\s*")

# The limit per token; Llama 3 has up to 31 letters.
_MOST_LETTERS = 128


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before merging."""

    text: str  # its text
    token_id: int
    special: bool  # the text of a special token stays text
    # Whether it is searched in the normalized text instead of the original text.
    normalized: bool = False
    takes_left: bool = False  # whether it includes the spaces before it
    takes_right: bool = False  # whether it includes the spaces after it


def spaces_taken(tokens: Iterable[AddedToken]) -> dict[str, tuple[bool, bool]]:
    """Return the special tokens that include white space to their left or right."""
    return {
        token.text: (token.takes_left, token.takes_right)
        for token in tokens
        if token.special and (token.takes_left or token.takes_right)
    }


Segment = tuple[str, int, int | None]
"""A part of a text, its start, and its id if it is an added token."""


class AddedTokenFinder:
    """Finds added tokens in text: the longest at each place, from left to right.

    Special tokens are found too, so that no other token is found inside of them, but they
    are left in the text. A token that is too long is a TokenizerError.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        self._sorted = sorted(self._tokens)
        # each token, then the tokens that it begins with
        self._nested: list[list[str]] = []
        self._longest = max(map(len, self._sorted), default=0)
        if self._longest > _MOST_LETTERS:
            raise TokenizerError(
                f"added tokens: expected at most {_MOST_LETTERS} letters in each, got "
                f"{self._longest}"
            )
        nested: list[str] = []
        for text in self._sorted:
            while nested and not text.startswith(nested[-1]):
                nested.pop()
            nested.append(text)
            self._nested.append(nested[::-1])
        firsts = "".join(map(regex.escape, {text[0] for text in self._sorted}))
        seconds = {text[1:2] for text in self._sorted}
        second = "" if "" in seconds else f"(?=[{''.join(map(regex.escape, seconds))}])"
        self._places = regex.compile(f"[{firsts}]{second}") if firsts else None

    def split(self, text: str) -> Iterator[Segment]:
        """Cut a text at the added tokens that are not special; no part is empty.

        In sorted order, a token that starts at a place is the last token that is not
        greater than the text there, or a token that this one begins with.
        """
        done = 0
        passed = 0
        spaces = range(0)
        for candidate in self._places.finditer(text) if self._places else ():
            start = candidate.start()
            if start < passed:
                continue
            here = text[start : start + self._longest]
            # If all tokens are greater, index -1 selects the very last one, which does
            # not match either.
            nested = self._nested[bisect_right(self._sorted, here) - 1]
            match_index = bisect_left(nested, True, key=here.startswith)
            if match_index == len(nested):
                continue
            token = self._tokens[nested[match_index]]
            passed = end = start + len(token.text)
            if token.special:
                continue
            if token.takes_left:
                start = (
                    done
                    if start < done
                    else _SPACES_BEFORE.match(text, done, start).start()
                )
            if token.takes_right:
                if end not in spaces:  # not scanned yet
                    spaces = range(end, _SPACES_AFTER.match(text, end).end() + 1)
                end = spaces.stop - 1
            if done < start:
                yield text[done:start], done, None
            # The previous token may include spaces that are separate tokens.
            yield text[max(start, done) : end], start, token.token_id
            done = end
        if done < len(text):
            yield text[done:], done, None
