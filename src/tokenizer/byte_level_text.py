"""Byte-level encoders: text is split into pieces, and every byte of a piece has a token."""

from .pieces import BytePieces
from .split import Splitter


class ByteLevelText:
    """Encode text piece by piece, from its bytes on.

    Args:
        pieces: encodes each piece.
        splitter: cuts a text into pieces.
        prefix_space: whether a space goes before a text that does not start with one.
    """

    def __init__(
        self, pieces: BytePieces, splitter: Splitter, *, prefix_space: bool = False
    ) -> None:
        self._pieces = pieces
        self._splitter = splitter
        self._prefix_space = prefix_space

    def normalize(self, text: str) -> str:
        """Leave the text as it is."""
        return text

    def encode_normalized(self, text: str, *, first: bool) -> list[int]:  # noqa: ARG002 # a protocol's
        """Encode a text, or what is between two added tokens of it."""
        if self._prefix_space and text and not text.startswith(" "):
            text = " " + text
        ids: list[int] = []
        for pieces in self._splitter.split(text):
            ids += self._pieces.encode_pieces(pieces)
        return ids
