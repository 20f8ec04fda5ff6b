"""Guessing the next tokens from the text so far, so that one step can check several of them.

Answers repeat: names, code, quotations of the prompt. What followed the last few tokens where they
stood before is a draft of what follows now. A step over the newest token and its draft costs little
more than a step over one, because both read all weights once, and it gives the logits after each of
them. Every token is still drawn by the sampler from the logits that a plain step would have given,
bit for bit; a draft only decides whether those logits are there already.

Source: Saxena, Prompt Lookup Decoding, 2023; the `lookup` example of llama.cpp.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .sampling import Logits

# Lengths of the ends that are looked up, the longest first: a longer one is right more often.
END_LENGTHS = (4, 3, 2)
# Most drafted tokens of a step; with the token that is certain it has 8 rows.
LONGEST_DRAFT = 7

# What lies further back is not looked up, which bounds the memory: about 600 bytes per token.
_LONGEST_TEXT = 1 << 15

_FIRST_ACCEPTANCE = 0.5
_ACCEPTANCE_WEIGHT = 0.1
# A row more is believed to cost this share of a step until it has been measured.
_FIRST_ROW_COST = 0.03
_TIME_WEIGHT = 0.25
# A step that was held up by something else must not count for more than this many steps.
_LONGEST_RATIO = 4.0
# How far, with each plain step, an old measurement fades towards the belief: so that a draft is
# tried again after a while, and a machine that was busy once is not held against drafts for ever.
_FADING = 0.01
# A draft must promise at least this much more than a plain step.
_LEAST_GAIN = 1.05


class TextIndex:
    """Knows where each sequence of 2 to 4 tokens stood last.

    Args:
        ids: the text so far; of a very long one, the end is enough.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids = list(ids[-_LONGEST_TEXT:])
        # By a sequence of tokens, the place in the text of what followed it.
        self._places: dict[tuple[int, ...], int] = {}
        for length in END_LENGTHS:
            sequences = zip(*(ids[start:] for start in range(length)), strict=False)
            # The last sequence has no place: nothing follows it yet.
            self._places.update(zip(sequences, range(length, len(ids)), strict=False))

    def append(self, token: int) -> None:
        """Add a token to the text."""
        ids, places = self._ids, self._places
        for length in END_LENGTHS:
            places[tuple(ids[-length:])] = len(ids)
        ids.append(token)

    def match(self) -> tuple[int, int] | None:
        """Find the longest end of the text that stood earlier.

        Returns:
            Its length and the place of what followed it then, or None if no end did.
        """
        ids = self._ids
        for length in END_LENGTHS:
            place = self._places.get(tuple(ids[-length:]))
            if place is not None:
                return length, place
        return None

    def copied(self, place: int, count: int) -> list[int]:
        """Copy tokens from a place on; at the end of the text the copy goes on with itself."""
        text = self._ids[place : place + count]
        return [text[i % len(text)] for i in range(count)]


class DraftLength:
    """Decides how many drafted tokens a step checks, from what drafts gave and what steps took.

    With p the share of drafted tokens that were right, a step over n of them yields
    1 + p + ... + p^n tokens, and takes as long as r(n + 1) plain steps. The n with the greatest
    quotient is chosen, and 0 where none pays. p is kept for each length of the end that was looked
    up, and is also learned while nothing is drafted; r is kept for each number of rows.
    """

    def __init__(self) -> None:
        self._acceptance = dict.fromkeys(END_LENGTHS, _FIRST_ACCEPTANCE)
        self._plain_seconds = 0.0
        self._believed = [1.0 + _FIRST_ROW_COST * n for n in range(LONGEST_DRAFT + 1)]
        self._ratios = list(self._believed)

    def best(self, end_length: int, most: int) -> int:
        """Return how many tokens to draft after an end of this length, 0 to `most`."""
        p = self._acceptance[end_length]
        best, best_gain = 0, _LEAST_GAIN
        expected, chance = 1.0, 1.0
        for count in range(1, most + 1):
            chance *= p
            expected += chance
            gain = expected / self._ratios[count]
            if gain > best_gain:
                best, best_gain = count, gain
        return best

    def note_guess(self, end_length: int, is_right: bool) -> None:
        """Learn whether a guessed token was the one that was drawn."""
        share = self._acceptance[end_length]
        self._acceptance[end_length] = share + _ACCEPTANCE_WEIGHT * (is_right - share)

    def note_step(self, drafted: int, seconds: float) -> None:
        """Learn how long a step over one token and so many drafted ones took."""
        if self._plain_seconds == 0.0:
            self._plain_seconds = seconds / self._believed[drafted]
        if drafted:
            ratio = min(seconds / self._plain_seconds, _LONGEST_RATIO)
            self._ratios[drafted] += _TIME_WEIGHT * (ratio - self._ratios[drafted])
            return
        seconds = min(seconds, _LONGEST_RATIO * self._plain_seconds)
        self._plain_seconds += _TIME_WEIGHT * (seconds - self._plain_seconds)
        for count, believed in enumerate(self._believed):
            self._ratios[count] += _FADING * (believed - self._ratios[count])


@dataclass
class _Guess:
    """What is held to come next.

    Attributes:
        end_length: Length of the end that stood before it earlier.
        tokens: At least one; a prefix of them was drafted, perhaps an empty one.
        rows: Logits [n, V] after each of the n drafted tokens.
        confirmed: How many tokens were drawn so far; the others may still come.
    """

    end_length: int
    tokens: list[int]
    rows: Logits | None = None
    confirmed: int = 0


class Drafter:
    """Makes the drafts of one answer, keeps their logits, and learns from what became of them.

    Args:
        ids: the prompt.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self._text = TextIndex(ids)
        self._length = DraftLength()
        self._guess: _Guess | None = None

    def observe(self, token: int) -> Logits | None:
        """Take a token that was drawn.

        Returns:
            The logits [V] after it, if it was drafted and all drafted tokens before it were right.
        """
        self._text.append(token)
        guess = self._guess
        if guess is None:
            return None
        is_right = token == guess.tokens[guess.confirmed]
        self._length.note_guess(guess.end_length, is_right)
        if not is_right:
            self._guess = None
            return None
        guess.confirmed += 1
        if guess.confirmed == len(guess.tokens):
            self._guess = None
        return None if guess.rows is None else guess.rows[guess.confirmed - 1]

    def draft(self, most: int) -> list[int]:
        """Return what the next step is to check after the newest token; often nothing.

        Args:
            most: so many tokens may still be drafted; at least 0.
        """
        match = self._text.match()
        if match is None:
            self._guess = None
            return []
        end_length, place = match
        count = self._length.best(end_length, min(most, LONGEST_DRAFT))
        tokens = self._text.copied(place, max(count, 1))
        self._guess = _Guess(end_length, tokens)
        return tokens[:count]

    def note_step(self, drafted: int, rows: Logits | None, seconds: float) -> None:
        """Take the logits [n, V] after the n drafted tokens, and the time of the step."""
        if self._guess is not None:
            self._guess.rows = rows
        self._length.note_step(drafted, seconds)
