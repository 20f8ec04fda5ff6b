"""Speculative decoding: draft several tokens that the model then checks in one step.

Answers often repeat names, code, or parts of the prompt. So the tokens that followed an
earlier occurrence of the last few tokens are used as a draft of the next tokens.
Alternatively, a smaller model with the same vocabulary drafts tokens. A step that runs
the newest token and its draft takes only a little longer than a step with a single token,
because both read all weights once, and it returns the logits after each token. The
sampler still draws every token from logits that are bit-identical to those of a plain
step. A draft only makes these logits available earlier.

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

# Lengths of the suffixes that are looked up. A longer match predicts better.
END_LENGTHS = (2, 3, 4)
# The suffix length that stands for the whole text, from which a draft model guesses.
WHOLE_TEXT = 0
# Maximum number of drafted tokens per step. With the newest token, a step has 8 rows.
LONGEST_DRAFT = 7

# Only the end of a long text is searched, to limit the time of a look-up.
_LONGEST_TEXT = 1 << 15
# Each token is represented by one character, so that a look-up is a `str` search.
_CHARACTERS = sys.maxunicode + 1

_FIRST_ACCEPTANCE = 0.5
_ACCEPTANCE_WEIGHT = 0.1
_TIME_WEIGHT = 0.25
# A step that is delayed counts as at most this many steps.
_LONGEST_RATIO = 4.0
# Measurements that prevent drafts decay by this share, towards a cost of zero per row, so
# that a temporarily busy machine does not prevent drafts forever.
_FADING = 0.01
# Minimum expected speedup of a draft over a plain step.
_LEAST_GAIN = 1.05
# Overhead budget for drafts, as a share of run time, in addition to the time that earlier
# drafts have saved. It is smaller for text drafts, which are on by default, than for a
# draft model.
TEXT_STAKE = 0.01
MODEL_STAKE = 0.05
# Maximum saved time that later drafts may use up, in plain steps.
_MOST_CREDIT = 8.0


class TextIndex:
    """Find earlier occurrences of the last 2 to 4 tokens of a non-empty text."""

    token_seconds = 0.0  # the time per guessed token is negligible

    def __init__(self, ids: Sequence[int]) -> None:
        self._text = "".join([chr(token % _CHARACTERS) for token in ids[-_LONGEST_TEXT:]])

    def append(self, token: int) -> None:
        """Append a token to the text. Ids above `sys.maxunicode` are ambiguous."""
        self._text += chr(token % _CHARACTERS)

    def match(self) -> tuple[int, int] | None:
        """Find the longest suffix of the text that also occurs earlier.

        Return its length and the position after the earlier occurrence, or None.
        """
        text = self._text
        match = None
        stop = len(text) - 1  # excludes the suffix itself
        for length in END_LENGTHS:
            at = text.rfind(text[-length:], 0, stop)
            if at < 0:
                break
            stop = at + length  # a longer suffix can only occur here or earlier
            match = length, stop
        return match

    def guess(self, place: int, count: int) -> list[int]:
        """Return `count` tokens from a position on, repeating them if the text ends."""
        text = self._text[place : place + count]
        return [ord(text[i % len(text)]) for i in range(count)]


class DraftModel:
    """A smaller model that guesses the next tokens of another model.

    Tokens are drawn with the same settings and random numbers as in the answer's sampler,
    so models with similar probabilities draw the same tokens.

    Raises:
        ModelError: If the vocabularies differ.
    """

    def __init__(self, model: Model, sequence_length: int, answering: Model) -> None:
        sizes = answering.args.vocab_size, model.args.vocab_size
        if answering.tokenizer is None or model.tokenizer is None:
            rule = f"{sizes[0]} tokens, as in the model that it drafts for"
            difference = None if sizes[0] == sizes[1] else str(sizes[1])
        else:
            at = answering.tokenizer.first_difference(model.tokenizer)
            # Only ids that both models can run are compared.
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
        # Padding rows in one embedding table have no meaning for the other model.
        self._vocab_size = min(sizes)
        self.token_seconds = 0.0

    def begin(self, ids: Sequence[int], sampler: Sampler) -> None:
        """Start an answer: run its prompt, and use its sampler for guesses."""
        self._text = list(ids)
        self._sampler = sampler
        self._read()

    def append(self, token: int) -> None:
        """Append a token to the text."""
        self._text.append(token)

    def match(self) -> tuple[int, int] | None:
        """Return `WHOLE_TEXT` and the text length, or None if the context is full."""
        end = len(self._text)
        return (WHOLE_TEXT, end) if end <= self._positions else None

    def guess(self, place: int, count: int) -> list[int]:
        """Return up to `count` tokens that are likely to follow."""
        started = time.perf_counter()
        tokens = list[int]()
        sampler = self._sampler.fork(self._vocab_size)
        logits = self._read()
        count = min(count, self._positions - place + 1)
        with suppress(NumericError):  # an error in this model must not end the answer
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
        """Run the new part of the text.

        Return the logits of the last token, or None if the model cannot run the text.
        """
        text = self._text
        sequence = self._pool.admit(text, len(text))
        logits = None
        new = text[len(sequence.ids) :]
        if len(text) <= self._positions and max(new) < self._vocab_size:
            while (start := len(sequence.ids)) < len(text):
                logits = self._run(text[start : start + PREFILL_CHUNK])
        return logits

    def _run(self, ids: list[int]) -> Logits:
        """Run new tokens, and return the logits [V] after the last one."""
        part = Part(self._pool.sequence, ids, len(ids), 1)
        rows: Logits = self._pool.run([part])[0][0]
        return rows


class PassCosts:
    """Measure how long passes take, and how much time drafts save.

    Drafts have a time budget. The time that they take is subtracted, the time that they
    save is added, and every other pass adds a small share of its duration, `stake`. While
    the budget is empty, nothing is looked up or drafted. So the overhead of drafts hardly
    exceeds this share, for any model, machine and text. A plain step continues `requests`
    answers by one token each.
    """

    def __init__(self, stake: float = TEXT_STAKE, requests: int = 1) -> None:
        self.credit = 0.0  # the remaining budget, in seconds
        self.requests = requests
        self._stake = stake
        self._plain_seconds = self._row_seconds = 0.0
        # The duration of a pass relative to a plain step, by the number of rows.
        self._ratios: dict[int, float] = {}

    def ratio(self, rows: int, token_seconds: float = 0.0) -> float:
        """Return the cost of a pass with this many rows, in plain steps.

        The cost includes guessing all tokens except the first one.
        """
        guessing = (rows - 1) * token_seconds / self._plain_seconds
        estimated = 1.0 + (rows - 1) * self._row_seconds / self._plain_seconds
        return self._ratios.get(rows, estimated) + guessing

    def fade(self) -> None:
        """Decay the measurements that prevent drafts."""
        self._row_seconds *= 1.0 - _FADING
        for rows, ratio in self._ratios.items():
            self._ratios[rows] = ratio + _FADING * (1.0 - ratio)

    def note_prompt(self, tokens: int, seconds: float) -> None:
        """Record the duration of a pass over `tokens` prompt tokens."""
        self._row_seconds = seconds / tokens
        self.add(self._stake * seconds)

    def note_pass(self, drafted: int, seconds: float) -> None:
        """Record the duration of a pass with `drafted` drafted tokens, possibly 0."""
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
        """Record a correct drafted token, which saves one answer a step."""
        self.add(self._plain_seconds / self.requests)

    def add(self, seconds: float) -> None:
        """Add seconds, which may be negative, to the budget, up to its maximum."""
        most = _MOST_CREDIT * self._plain_seconds
        self.credit = min(self.credit + seconds, max(most, self.credit))


class Drafter:
    """Draft tokens for one answer, and learn how many drafted tokens are worthwhile.

    If p is the share of correct guesses, a step with n drafted tokens yields an expected
    1 + p + ... + p^n tokens and takes as long as r(n + 1) plain steps. The n with the
    largest ratio of tokens to time is chosen, or 0 if drafts do not save time. A separate
    p is learned for each suffix length. In a pass with several answers, the others are
    counted with one token each.
    """

    def __init__(self, guesser: TextIndex | DraftModel, costs: PassCosts) -> None:
        self._guesser = guesser
        self._costs = costs
        self._acceptance = dict.fromkeys((WHOLE_TEXT, *END_LENGTHS), _FIRST_ACCEPTANCE)
        self._end_length = WHOLE_TEXT  # the suffix length of the latest guess
        self._expected: list[int] = []  # guessed tokens that may still be drawn
        self._rows: list[Logits] = []  # the logits [V] after each drafted token

    def observe(self, token: int) -> Logits | None:
        """Observe a drawn token.

        Return the logits [V] after this token if it was drafted, and None otherwise.
        """
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
        """Return at most `most` drafted tokens for the next pass.

        `others` is the number of tokens that are drafted for other answers in this pass.
        `costs` replaces the current `PassCosts`, unless it is None.
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
            # Guess at least one token even if none is drafted, to measure how often
            # guesses from the text are correct.
            self._expected = guesser.guess(
                place, count if guesser.token_seconds else max(count, 1)
            )
        self._costs.add(started - clock())
        return self._expected[:count]

    def best_count(self, most: int, others: int = 0) -> int:
        """Return how many tokens to draft, from 0 to `most`.

        `others` is the number of tokens that are drafted for other answers in this pass.
        """
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
            if seconds:  # the acceptance is not measured while nothing is guessed
                self._acceptance[self._end_length] += _FADING * (1.0 - p)
        return best

    def note_rows(self, rows: Logits) -> None:
        """Store the logits [1 + n, V] after the newest token and n drafted tokens."""
        self._rows = [*rows[1:]]
