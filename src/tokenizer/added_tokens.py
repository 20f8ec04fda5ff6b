"""Tokens that are added to a vocabulary and found in text before anything else.

Special tokens are left in the text: it never becomes a special id. An added token that is
not special is, for example, `<think>`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import regex

from .errors import TokenizerError

_SPACES_BEFORE = regex.compile(r"(?r)\s*")
_SPACES_AFTER = regex.compile(r"\s*")

# Of each; those of Llama 3 have up to 31.
_MOST_LETTERS = 128


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before anything merges."""

    text: str  # what it looks like
    token_id: int
    special: bool  # if text spells a special one, it stays text
    normalized: bool = (
        False  # looked for in the normalized text, not in the text as it is
    )
    takes_left: bool = False  # the spaces before it
    takes_right: bool = False  # the spaces after it


def spaces_taken(tokens: Iterable[AddedToken]) -> dict[str, tuple[bool, bool]]:
    """Return the special tokens that take the white space to their left or to their
    right.
    """
    return {
        token.text: (token.takes_left, token.takes_right)
        for token in tokens
        if token.special and (token.takes_left or token.takes_right)
    }


Segment = tuple[str, int, int | None]
"""A part of a text, where it starts, and its id if it is an added token."""


class AddedTokenFinder:
    """Find added tokens in text: of several at one place the longest, from left to right.

    Special ones are found too, so that no other one is seen inside of them, and left in
    the text. TokenizerError where one is too long.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        self._sorted = sorted(self._tokens)
        self._nested: list[list[str]] = []  # each token, then those that it begins with
        self._longest = max(map(len, self._sorted), default=0)
        if self._longest > _MOST_LETTERS:
            rule = f"at most {_MOST_LETTERS} letters in each"
            raise TokenizerError(f"added tokens: expected {rule}, got {self._longest}")
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

        In sorted order, one that starts at a place is the last that is not greater than
        the text there, or what this one begins with.
        """
        done = 0
        passed = 0
        spaces = range(0)
        for found in self._places.finditer(text) if self._places else ():
            start = found.start()
            if start < passed:
                continue
            here = text[start : start + self._longest]
            # If all are greater, index -1 gives the very last one, which is not there
            # either.
            nested = self._nested[bisect_right(self._sorted, here) - 1]
            known = bisect_left(nested, True, key=here.startswith)
            if known == len(nested):
                continue
            token = self._tokens[nested[known]]
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
