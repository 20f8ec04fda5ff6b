"""Split text into the pieces that byte pair encoding works on, as Llama 3 does."""

from bisect import bisect_right
from collections.abc import Iterator

import regex

from .unicode_16 import UNASSIGNED_BOUNDS

# Source: meta-llama/llama-models models/llama3/tokenizer.py, commit
# a946b747aa1504b9cb07cfe95ee50180fa2e8b88 (`pat_str`). `\s+(?!\S)` leaves the last of several
# spaces to the word that follows.
SPLIT_PATTERN = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Long texts are split part by part, so that the pieces of only one part are held at a time.
PART_CHARS = 1 << 16

# No piece goes on from a non-space into a space, and none that ends in a non-space looks beyond
# its end: before such a space a text can be cut and gives the same pieces.
_CUT = regex.compile(r"\S ")

# A private use character: neither letter nor number nor space in any version of Unicode.
_STAND_IN = "\ue000"


def split(text: str) -> Iterator[list[str]]:
    """Split a text into pieces; joined, they are the text again.

    Args:
        text: text without lone surrogates.

    Yields:
        Lists of consecutive pieces, at most a few per part of `PART_CHARS` characters.
    """
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + PART_CHARS)
        end = cut.end() - 1 if cut else len(text)
        yield _split_part(text[start:end])
        start = end


def _split_part(text: str) -> list[str]:
    """Split, reading every character as Unicode 16.0 has it.

    The `regex` package moves to newer versions of Unicode, in which characters that were
    unassigned become letters; the ids of a text must not depend on its version. Such characters
    are replaced for the split by one that stays what an unassigned one is: none of all.
    """
    if text.isascii():
        return SPLIT_PATTERN.findall(text)  # type: ignore[no-any-return]
    strangers = [ord(c) for c in set(text) if bisect_right(UNASSIGNED_BOUNDS, ord(c)) % 2]
    if not strangers:
        return SPLIT_PATTERN.findall(text)  # type: ignore[no-any-return]
    known = text.translate(dict.fromkeys(strangers, _STAND_IN))
    return [text[match.start() : match.end()] for match in SPLIT_PATTERN.finditer(known)]
