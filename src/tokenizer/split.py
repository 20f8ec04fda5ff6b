"""Split text into the pieces that byte pair encoding works on: the patterns that are known."""

from bisect import bisect_right
from collections.abc import Iterator

import regex

from .unicode_16 import UNASSIGNED_BOUNDS

# Long texts are split part by part, so that the pieces of only one part are held at a time.
PART_CHARS = 1 << 16

# A private use character: neither letter nor number nor space in any version of Unicode.
_STAND_IN = "\ue000"


class Splitter:
    """One way to split.

    Args:
        pattern: matches each piece in turn; joined, the matches are the text.
        cut: matches the last character of a piece and the first of the next, wherever nothing to
            the left can change the pieces to the right, nor the other way round.
    """

    def __init__(self, pattern: str, cut: str) -> None:
        self.pattern = regex.compile(pattern)
        self._cut = regex.compile(cut)

    def split(self, text: str) -> Iterator[list[str]]:
        """Split a text into pieces; joined, they are the text again.

        Args:
            text: text without lone surrogates.

        Yields:
            Lists of consecutive pieces, at most a few per part of `PART_CHARS` characters.
        """
        start = 0
        while start < len(text):
            cut = self._cut.search(text, start + PART_CHARS)
            end = cut.end() - 1 if cut else len(text)
            yield self._split_part(text[start:end])
            start = end

    def _split_part(self, text: str) -> list[str]:
        """Split, reading every character as Unicode 16.0 has it.

        The `regex` package moves to newer versions of Unicode, in which characters that were
        unassigned become letters; the ids of a text must not depend on its version. Such
        characters are replaced for the split by one that stays what an unassigned one is: none
        of all.
        """
        if text.isascii():
            return self.pattern.findall(text)  # type: ignore[no-any-return]
        strangers = [ord(c) for c in set(text) if bisect_right(UNASSIGNED_BOUNDS, ord(c)) % 2]
        if not strangers:
            return self.pattern.findall(text)  # type: ignore[no-any-return]
        known = text.translate(dict.fromkeys(strangers, _STAND_IN))
        return [text[match.start() : match.end()] for match in self.pattern.finditer(known)]


# No piece of the patterns for byte-level tokens goes on from a non-space into a space, and none
# that ends in a non-space looks beyond its end.
_BEFORE_SPACE = r"\S "

# Source: meta-llama/llama-models models/llama3/tokenizer.py, commit
# a946b747aa1504b9cb07cfe95ee50180fa2e8b88 (`pat_str`). `\s+(?!\S)` leaves the last of several
# spaces to the word that follows.
LLAMA_3 = Splitter(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    _BEFORE_SPACE,
)

# Source: openai/gpt-2 src/encoder.py, commit 9b63575ef42771a015060c964af2c3da4cf7c8ab; the
# spelling is that of huggingface/tokenizers src/pre_tokenizers/byte_level.rs, v0.23.
GPT_2 = Splitter(
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", _BEFORE_SPACE
)

# SmolLM2: every digit is cut out first, then GPT-2's pattern splits what is between them. In one
# pattern: a digit is a piece, and spaces before a digit are the end of what GPT-2's pattern sees,
# so that no space is left to it.
DIGITS_THEN_GPT_2 = Splitter(
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+", _BEFORE_SPACE
)

# SentencePiece's words: each with the spaces before it, which are written as U+2581.
MARKED_WORDS = Splitter("\u2581*[^\u2581]+|\u2581+", "[^\u2581]\u2581")
