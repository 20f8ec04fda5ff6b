"""Turn token ids into text one at a time, without ever showing part of a character."""

import re

from .tokenizer import Tokenizer

# The bytes at the end that begin a character and leave it open: every proper prefix of a row of
# the Unicode Standard's table 3-7, "Well-Formed UTF-8 Byte Sequences". Python's own incremental
# decoder also waits after ED A0..BF, which nothing can complete.
_OPEN_END = re.compile(
    rb"(?:[\xc2-\xdf]"
    rb"|\xe0[\xa0-\xbf]?"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]?"
    rb"|\xed[\x80-\x9f]?"
    rb"|\xf0(?:[\x90-\xbf][\x80-\xbf]?)?"
    rb"|[\xf1-\xf3][\x80-\xbf]{0,2}"
    rb"|\xf4(?:[\x80-\x8f][\x80-\xbf]?)?)\Z"
)
_LONGEST_OPEN_END = 3


class StreamDecoder:
    """Decode ids as they come; the texts joined are what decoding all ids at once gives.

    A character whose bytes are spread over several tokens comes out with the token that completes
    it. Bytes that can no longer become a character come out as U+FFFD at once, so they
    hold nothing back.

    Args:
        tokenizer: what knows the bytes of each id.
        first: whether the ids begin a text. A SentencePiece-style tokenizer puts a space before a
            text, which is not shown; ids that go on from a text keep their spaces.
    """

    def __init__(self, tokenizer: Tokenizer, *, first: bool = True) -> None:
        self._tokenizer = tokenizer
        self._first = first and tokenizer.decoding.drops_first_space
        self._at_start = self._first
        self._open = b""

    def push(self, token_id: int) -> str:
        """Take the next id and give the text that is complete with it.

        Args:
            token_id: 0 <= token_id < V.

        Returns:
            New text, empty where the id only begins or continues a character.

        Raises:
            TokenizerError: for an id that the tokenizer does not have; nothing is lost by it.
        """
        data, self._at_start = self._tokenizer.text_bytes(token_id, at_start=self._at_start)
        data = self._open + data
        match = _OPEN_END.search(data, max(0, len(data) - _LONGEST_OPEN_END))
        end = match.start() if match else len(data)
        self._open = data[end:]
        return self._tokenizer.text_of(data[:end])

    def finish(self) -> str:
        """End the text: U+FFFD for a character that was begun and never completed, or nothing.

        Returns:
            The rest of the text. The decoder is ready for another one.
        """
        rest, self._open = self._open, b""
        self._at_start = self._first
        return self._tokenizer.text_of(rest)
