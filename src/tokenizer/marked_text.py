"""SentencePiece-style encoders: spaces become U+2581, and the text need not be split."""

from collections.abc import Callable, Iterable
from enum import Enum
from itertools import groupby

from .pieces import CharacterPieces
from .split import MARKED_WORDS

SPACE_MARK = "\u2581"


class Prefix(Enum):
    """When a space mark goes before a text."""

    ALWAYS = "before every text that is not empty"
    UNMARKED = "before every text that does not start with one"
    FIRST_UNMARKED = "before the first text of a prompt, unless it starts with one"
    NEVER = "never"


def mark_spaces(text: str, prefix: Prefix, *, first: bool = True) -> str:
    """Write spaces as marks, and put one before the text where the rule says so.

    Args:
        text: any text.
        prefix: the rule.
        first: whether nothing stands before the text.
    """
    text = text.replace(" ", SPACE_MARK)
    if prefix is Prefix.ALWAYS:
        wanted = True
    elif prefix is Prefix.NEVER:
        wanted = False
    else:
        wanted = (first or prefix is Prefix.UNMARKED) and not text.startswith(SPACE_MARK)
    return SPACE_MARK + text if text and wanted else text


def words_are_independent(tokens: Iterable[str]) -> bool:
    """Tell whether no token reaches from one word into the next, so that words can be cut apart."""
    return not any(SPACE_MARK in token.lstrip(SPACE_MARK) for token in tokens)


class MarkedText:
    """Encode text whose spaces are marked.

    Args:
        pieces: encodes each piece.
        normalize: marks the spaces of a whole text, before added tokens are looked for in it.
        words: whether words are encoded apart: because the file says so, or because no token
            reaches from one to the next, so that the ids are the same.
        prefix: the rule for marks after added tokens have been cut out; None where all spaces are
            marked before that.
        fused_id: neighbouring ids of this number become one; None for no number.
    """

    def __init__(
        self,
        pieces: CharacterPieces,
        *,
        normalize: Callable[[str], str],
        words: bool,
        prefix: Prefix | None = None,
        fused_id: int | None = None,
    ) -> None:
        self._pieces = pieces
        self._words = words
        self._prefix = prefix
        self._fused_id = fused_id
        self.normalize = normalize

    def encode_normalized(self, text: str, *, first: bool) -> list[int]:
        """Encode a text, or what is between two added tokens of it."""
        if self._prefix is not None:
            text = mark_spaces(text, self._prefix, first=first)
        ids: list[int] = []
        if self._words:
            for words in MARKED_WORDS.split(text):
                ids += self._pieces.encode_pieces(words)
        elif text:
            ids = self._pieces.encode_pieces([text])
        if self._fused_id is None or self._fused_id not in ids:
            return ids
        runs = [(number, list(run)) for number, run in groupby(ids)]
        return [n for number, run in runs for n in (run[:1] if number == self._fused_id else run)]
