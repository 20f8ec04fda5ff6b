"""Guessing the next tokens, so that one step can check several of them.

Answers contain repetitions: names, code, quotations of the prompt. The tokens that
followed an earlier occurrence of the last few tokens are a draft of the next ones.
Alternatively a smaller model with the same vocabulary drafts. A step over the newest
token and its draft takes little longer than a step over one token, because both read all
weights once, and it gives the logits after each token. The sampler still draws every
token from the logits of a plain step, bit for bit; a draft only makes these logits
available earlier.

Source: Saxena, Prompt Lookup Decoding, 2023; the `lookup` example of llama.cpp; for a
draft model Leviathan et al., Fast Inference from Transformers via Speculative Decoding,
2022.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from ..model import PREFILL_CHUNK, Model, ModelError
from ..trace import clock
from ..untrusted import label_of
from .blocks import LonePool, Part
from .errors import NumericError
from .sampling import Logits, Sampler

# Lengths of the endings that are looked up: a longer one predicts better.
END_LENGTHS = (2, 3, 4)
# The length of an ending when a model guesses from the whole text.
WHOLE_TEXT = 0
# The most drafted tokens of a step; with the newest token it has 8 rows.
LONGEST_DRAFT = 7

# Only the end of a long text is searched, which limits the time of a look-up.
_LONGEST_TEXT = 1 << 15
# Each token is one character of a string, so that a look-up is a search of `str`.
_CHARACTERS = sys.maxunicode + 1

_FIRST_ACCEPTANCE = 0.5
_ACCEPTANCE_WEIGHT = 0.1
_TIME_WEIGHT = 0.25
# A delayed step counts for at most this many steps.
_LONGEST_RATIO = 4.0
# A measurement that forbids a draft fades towards "a row costs nothing" by this share, so
# that a machine that was once busy does not prevent drafts for ever.
_FADING = 0.01
# A draft must promise at least this much more than a plain step.
_LEAST_GAIN = 1.05
# Overhead budget of drafts as a share of run time, in addition to the time that earlier
# drafts saved: less for text drafts, which are on by default, than for a draft model.
TEXT_STAKE = 0.01
MODEL_STAKE = 0.05
# The most saved time that drafts may lose again, in plain steps.
_MOST_CREDIT = 8.0


class TextIndex:
    """Finds an earlier occurrence of the last 2 to 4 tokens of a nonempty text."""

    token_seconds = 0.0  # the time of a guess is negligible

    def __init__(self, ids: Sequence[int]) -> None:
        self._text = "".join([chr(token % _CHARACTERS) for token in ids[-_LONGEST_TEXT:]])

    def append(self, token: int) -> None:
        """Add a token to the text; an id beyond Python's characters is ambiguous."""
        self._text += chr(token % _CHARACTERS)

    def match(self) -> tuple[int, int] | None:
        """Find the longest ending of the text that occurred earlier.

        Return its length and the place after the earlier occurrence, or None.
        """
        text = self._text
        match = None
        stop = len(text) - 1  # the end itself has no token after it
        for length in END_LENGTHS:
            at = text.rfind(text[-length:], 0, stop)
            if at < 0:
                break
            stop = at + length  # a longer end occurred here or further back
            match = length, stop
        return match

    def guess(self, place: int, count: int) -> list[int]:
        """Copy tokens from a place on, repeating the copy if the text ends."""
        text = self._text[place : place + count]
        return [ord(text[i % len(text)]) for i in range(count)]


class DraftModel:
    """Continues the text of another model with a smaller model.

    It draws with the same settings and random numbers as the sampler of the answer, so
    models with similar probabilities draw the same tokens.

    Raises:
        ModelError: The vocabularies differ.
    """

    def __init__(self, model: Model, sequence_length: int, answering: Model) -> None:
        sizes = answering.args.vocab_size, model.args.vocab_size
        if answering.tokenizer is None or model.tokenizer is None:
            rule = f"{sizes[0]} tokens, as in the model that it drafts for"
            difference = None if sizes[0] == sizes[1] else str(sizes[1])
        else:
            at = answering.tokenizer.first_difference(model.tokenizer)
            # Only ids that both can run are compared.
            is_same = at is None or at >= min(sizes)
            rule = "the tokens of the model that it drafts for"
            difference = None if is_same else f"another token {at}"
        if difference is not None:
            raise ModelError(
                f"{label_of(model.source_directory)}: vocabulary: expected {rule}, "
                f"got {difference}"
            )
        self._positions = min(sequence_length, model.args.max_context_length)
        self._pool = LonePool(model, self._positions)
        # Padding rows of one table have no meaning in the other.
        self._vocab_size = min(sizes)
        self.token_seconds = 0.0

    def begin(self, ids: Sequence[int], sampler: Sampler) -> None:
        """Run the prompt of an answer that the sampler will draw."""
        self._text = list(ids)
        self._sampler = sampler
        self._read()

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self._text.append(token)

    def match(self) -> tuple[int, int] | None:
        """Return the place after the whole text, or None if the context is full."""
        end = len(self._text)
        return (WHOLE_TEXT, end) if end <= self._positions else None

    def guess(self, place: int, count: int) -> list[int]:
        """Return up to `count` tokens that may follow."""
        started = time.perf_counter()
        tokens = list[int]()
        sampler = self._sampler.fork(self._vocab_size)
        logits = self._read()
        count = min(count, self._positions - place + 1)
        with suppress(NumericError):  # the answer does not depend on this model
            while logits is not None and len(tokens) < count:
                token = sampler.sample(logits, place + len(tokens))
                if token >= self._vocab_size:
                    break
                tokens.append(token)
                sampler.observe((token,), is_drawn=True)
                if len(tokens) < count:
                    logits = self._run([token])
        if tokens:
            seconds = (time.perf_counter() - started) / len(tokens)
            self.token_seconds += _TIME_WEIGHT * (seconds - self.token_seconds)
        return tokens

    def _read(self) -> Logits | None:
        """Run the new part of the text; return its last logits, or None if too long."""
        text = self._text
        sequence = self._pool.admit(text, len(text))
        logits = None
        new = text[len(sequence.ids) :]
        if len(text) <= self._positions and max(new) < self._vocab_size:
            while (start := len(sequence.ids)) < len(text):
                logits = self._run(text[start : start + PREFILL_CHUNK])
        return logits

    def _run(self, ids: list[int]) -> Logits:
        """Run tokens after the cached ones; return the logits [V] after the last."""
        part = Part(self._pool.sequence, ids, len(ids), 1)
        rows: Logits = self._pool.run([part])[0][0]
        return rows


class PassCosts:
    """Measures the duration of passes over several rows, and the gain of drafts.

    Drafts have an account. The time that they take is subtracted, the steps that they
    save are added, and every other pass adds `stake`, a small share of its time. While
    the account is empty, nothing is looked up or drafted. So drafts cost little more than
    that share, for any model, machine and text. A plain step continues `requests` answers
    by one token each.
    """

    def __init__(self, stake: float = TEXT_STAKE, requests: int = 1) -> None:
        self.credit = 0.0  # the account, in seconds
        self.requests = requests
        self._stake = stake
        self._plain_seconds = self._row_seconds = 0.0
        # By the number of rows, the duration of a pass divided by that of a plain step.
        self._ratios: dict[int, float] = {}

    def ratio(self, rows: int, token_seconds: float = 0.0) -> float:
        """Return the cost of guessing all tokens but one and running all rows.

        The unit is a plain step.
        """
        guessing = (rows - 1) * token_seconds / self._plain_seconds
        estimated = 1.0 + (rows - 1) * self._row_seconds / self._plain_seconds
        return self._ratios.get(rows, estimated) + guessing

    def fade(self) -> None:
        """Fade the measurements that forbid drafts."""
        self._row_seconds *= 1.0 - _FADING
        for rows, ratio in self._ratios.items():
            self._ratios[rows] = ratio + _FADING * (1.0 - ratio)

    def note_prompt(self, tokens: int, seconds: float) -> None:
        """Record the duration of a pass over a part of a prompt."""
        self._row_seconds = seconds / tokens
        self.add(self._stake * seconds)

    def note_pass(self, drafted: int, seconds: float) -> None:
        """Record the duration of a pass with `drafted` tokens, which may be 0."""
        plain = self._plain_seconds or seconds
        if drafted:
            rows = 1 + drafted
            ratio = min(seconds / plain, max(_LONGEST_RATIO, rows))
            before = self._ratios.get(rows, ratio)
            self._ratios[rows] = before + _TIME_WEIGHT * (ratio - before)
            self.add((1.0 - ratio) * plain)
        else:
            seconds = min(seconds, _LONGEST_RATIO * plain)
            self._plain_seconds = plain + _TIME_WEIGHT * (seconds - plain)
            self.add(self._stake * seconds)

    def note_saved_step(self) -> None:
        """Record a correct drafted token, which saves one of the answers a step."""
        self.add(self._plain_seconds / self.requests)

    def add(self, seconds: float) -> None:
        """Add seconds, which may be negative, to the account."""
        most = _MOST_CREDIT * self._plain_seconds
        self.credit = min(self.credit + seconds, max(most, self.credit))


class Drafter:
    """Makes the drafts of one answer, returns their logits, and learns their value.

    With p the share of correct guesses, a step over n drafted tokens yields 1 + p + ... +
    p^n tokens, and takes as long as r(n + 1) plain steps. The n with the greatest
    quotient is drafted, or 0 if no n pays. A separate p is kept for each length of the
    ending that was looked up. The tokens of other answers in a pass count too, once each.
    """

    def __init__(self, guesser: TextIndex | DraftModel, costs: PassCosts) -> None:
        self._guesser = guesser
        self._costs = costs
        self._acceptance = dict.fromkeys((WHOLE_TEXT, *END_LENGTHS), _FIRST_ACCEPTANCE)
        self._end_length = WHOLE_TEXT  # the basis of the newest guess
        self._expected: list[int] = []  # guessed tokens that may still be drawn
        self._rows: list[Logits] = []  # the logits [V] after each drafted token

    def observe(self, token: int) -> Logits | None:
        """Observe a drawn token; return the logits [V] after it if they are available."""
        self._guesser.append(token)
        if not self._expected:
            return None
        is_right = token == self._expected.pop(0)
        share = self._acceptance[self._end_length]
        self._acceptance[self._end_length] = share + _ACCEPTANCE_WEIGHT * (
            is_right - share
        )
        if not is_right:
            self._expected = []
            self._rows = []
        if not self._rows:
            return None
        self._costs.note_saved_step()
        return self._rows.pop(0)

    def draft(
        self, most: int, costs: PassCosts | None = None, others: int = 0
    ) -> list[int]:
        """Return at most `most` tokens, to be checked with `others` of other answers.

        `costs` replaces the costs of passes; None keeps them.
        """
        self._expected = []
        self._rows = []
        self._costs = costs or self._costs
        if self._costs.credit <= 0.0:
            return []
        started = clock()
        guesser = self._guesser
        count = 0
        if (match := guesser.match()) is not None:
            self._end_length, place = match
            count = self.best_count(min(most, LONGEST_DRAFT - others), others)
            # A guess from the text that is not drafted still measures how often guesses
            # are correct.
            self._expected = guesser.guess(
                place, count if guesser.token_seconds else max(count, 1)
            )
        self._costs.add(started - clock())
        return self._expected[:count]

    def best_count(self, most: int, others: int = 0) -> int:
        """Return how many tokens to draft, 0 to `most`, together with `others`."""
        costs = self._costs
        seconds = self._guesser.token_seconds
        p = self._acceptance[self._end_length]
        before = costs.ratio(1 + others)
        best = 0
        best_gain = _LEAST_GAIN
        expected = float(costs.requests)
        chance = 1.0
        for count in range(1, most + 1):
            chance *= p
            expected += chance
            ratio = costs.ratio(1 + others + count, seconds) / before
            gain = expected / (costs.requests * ratio)
            if gain > best_gain:
                best = count
                best_gain = gain
        if not best:
            costs.fade()
            if seconds:  # without a guess, the acceptance is not measured
                self._acceptance[self._end_length] += _FADING * (1.0 - p)
        return best

    def note_rows(self, rows: Logits) -> None:
        """Keep the logits [1 + n, V] after the newest token and n drafted tokens."""
        self._rows = [*rows[1:]]
