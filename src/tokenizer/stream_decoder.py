"""Turn token ids into text one at a time, without ever showing part of a character."""

import codecs
from typing import Protocol


class _TokenBytes(Protocol):
    def token_bytes(self, token_id: int) -> bytes: ...


class StreamDecoder:
    """Decode ids as they come; the texts joined are what decoding all ids at once gives.

    A character whose bytes are spread over several tokens comes out with the token that completes
    it. Bytes that can no longer become a character come out as U+FFFD at once, so they
    hold nothing back.

    Args:
        tokenizer: what knows the bytes of each id.
    """

    def __init__(self, tokenizer: _TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next id and give the text that is complete with it.

        Args:
            token_id: 0 <= token_id < V.

        Returns:
            New text, empty where the id only begins or continues a character.

        Raises:
            TokenizerError: for an id that the tokenizer does not have; nothing is lost by it.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """End the text: U+FFFD for a character that was begun and never completed, or nothing.

        Returns:
            The rest of the text. The decoder is ready for another one.
        """
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
