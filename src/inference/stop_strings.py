"""Ending an answer at a given text that may arrive in pieces."""

from collections.abc import Sequence

from .errors import PromptError


class StopStrings:
    """Passes text on, except what is, or may still become, a stop string.

    Text that could be the beginning of a stop string is held back until more text decides.
    Of several stop strings, the one that begins first ends the answer.

    Attributes:
        found: Whether a stop string has been met; nothing is passed on after that.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                shown = ascii(stop)[:80]
                raise PromptError(f"[generate] stop must hold texts of >= 1 character: got {shown}")
        self.found = False
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Take more text and return what is certain not to belong to a stop string."""
        if self.found:
            return ""
        text = self._held + text
        begins = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if begins:
            self.found = True
            self._held = ""
            return text[: min(begins)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of the text that begins the stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
