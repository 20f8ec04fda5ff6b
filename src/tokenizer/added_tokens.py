"""Added tokens: vocabulary entries that are matched in the text before BPE merging.

Special tokens are treated as ordinary text, because text never encodes to a special id.
An example of an added token that is not special is `<think>`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import regex

from .errors import TokenizerError

_SPACES_BEFORE = regex.compile(r"(?r)\s*")
_SPACES_AFTER = regex.compile(r"\s*")

# Maximum length of an added token, in characters. The longest in Llama 3 has 31.
_MOST_LETTERS = 128


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in the text before BPE merging."""

    text: str  # the string to match
    token_id: int
    special: bool  # whether its name is encoded as ordinary text
    # Whether to search the normalized text instead of the original text.
    normalized: bool = False
    takes_left: bool = False  # whether the match includes the spaces before it
    takes_right: bool = False  # whether the match includes the spaces after it


def spaces_taken(tokens: Iterable[AddedToken]) -> dict[str, tuple[bool, bool]]:
    """Return which special tokens absorb white space to their left and right."""
    return {
        token.text: (token.takes_left, token.takes_right)
        for token in tokens
        if token.special and (token.takes_left or token.takes_right)
    }


Segment = tuple[str, int, int | None]
"""A part of the text, its start offset, and the token id if it is an added token."""


class AddedTokenFinder:
    """Finds added tokens in text from left to right, preferring the longest match.

    Special tokens are matched too, so that no other token is found inside them, but their
    text is not split off.

    Raises:
        TokenizerError: A token is too long.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        self._sorted = sorted(self._tokens)
        # For each token: the token itself, then the tokens that are prefixes of it,
        # longest first.
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
        """Split text at the added tokens that are not special; no part is empty.

        To find the token at a position, take the last token in sorted order that does not
        exceed the text at that position. The match is this token or one of its prefixes.
        """
        done = 0
        passed = 0
        spaces = range(0)
        for candidate in self._places.finditer(text) if self._places else ():
            start = candidate.start()
            if start < passed:
                continue
            here = text[start : start + self._longest]
            # If every token exceeds the text, index -1 selects the last token, which does
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
                if end not in spaces:  # not yet scanned
                    spaces = range(end, _SPACES_AFTER.match(text, end).end() + 1)
                end = spaces.stop - 1
            if done < start:
                yield text[done:start], done, None
            # The previous match may already include this token if it consists of spaces.
            yield text[max(start, done) : end], start, token.token_id
            done = end
        if done < len(text):
            yield text[done:], done, None
