"""Guessing the next tokens, so that one step can check several of them.

Answers repeat: names, code, quotations of the prompt. What followed the last few tokens
at an earlier place is a draft of what follows now. Or a smaller model with the same
vocabulary drafts. A step over the newest token and its draft takes little longer than a
step over one, because both read all weights once, and it gives the logits after each of
them. Every token is still drawn by the sampler from the logits that a plain step would
have given, bit for bit; a draft only decides whether those logits are there already.

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

# Lengths of the ends that are looked up: a longer one is right more often.
END_LENGTHS = (2, 3, 4)
# Stands for the length of an end where a model guesses.
WHOLE_TEXT = 0
# Most drafted tokens of a step; with the token that is certain it has 8 rows.
LONGEST_DRAFT = 7

# Text further back is not looked up, which bounds the time of a look-up.
_LONGEST_TEXT = 1 << 15
# Each token is one character of a string, so that a look-up is a search of `str`.
_CHARACTERS = sys.maxunicode + 1

_FIRST_ACCEPTANCE = 0.5
_ACCEPTANCE_WEIGHT = 0.1
_TIME_WEIGHT = 0.25
# A step that something else delayed must not count for more than this many steps.
_LONGEST_RATIO = 4.0
# How far a measurement fades towards "a row costs nothing" each time it forbids a draft,
# so that a machine that was busy once does not prevent drafts for ever.
_FADING = 0.01
# A draft must promise at least this much more than a plain step.
_LEAST_GAIN = 1.05
# Drafts may cost this share of the time of an engine, beside what earlier drafts have
# saved: of those that nobody asked for less than of a model that was given for it.
TEXT_STAKE = 0.01
MODEL_STAKE = 0.05
# The most plain steps that drafts may lose again of what they have saved.
_MOST_CREDIT = 8.0


class TextIndex:
    """Finds an earlier place of the last 2 to 4 tokens of a text, which is not empty."""

    token_seconds = 0.0  # what it takes to guess one, next to nothing

    def __init__(self, ids: Sequence[int]) -> None:
        self._text = "".join([chr(token % _CHARACTERS) for token in ids[-_LONGEST_TEXT:]])

    def append(self, token: int) -> None:
        """Add a token to the text; beyond the characters of Python it may be guessed
        wrongly.
        """
        self._text += chr(token % _CHARACTERS)

    def match(self) -> tuple[int, int] | None:
        """Return the length of the longest end that occurred earlier, and the place after
        it.
        """
        text = self._text
        found = None
        stop = len(text) - 1  # the end itself has no token after it
        for length in END_LENGTHS:
            at = text.rfind(text[-length:], 0, stop)
            if at < 0:
                break
            stop = at + length  # a longer end occurred here or further back
            found = length, stop
        return found

    def guess(self, place: int, count: int) -> list[int]:
        """Copy tokens from a place on; at the end of the text the copy goes on with
        itself.
        """
        text = self._text[place : place + count]
        return [ord(text[i % len(text)]) for i in range(count)]


class DraftModel:
    """Lets a smaller model go on with the text of another, or raises ModelError if it
    cannot.

    It draws with the same settings and random numbers as the sampler of the answer will,
    so that models that agree on what is probable agree on the tokens.
    """

    def __init__(self, model: Model, sequence_length: int, answering: Model) -> None:
        sizes = answering.args.vocab_size, model.args.vocab_size
        if answering.tokenizer is None or model.tokenizer is None:
            rule = f"the {sizes[0]} tokens"
            got = None if sizes[0] == sizes[1] else str(sizes[1])
        else:
            at = answering.tokenizer.first_difference(model.tokenizer)
            # Only ids that both can run are compared.
            is_same = at is None or at >= min(sizes)
            rule = "that"
            got = None if is_same else f"another token {at}"
        if got is not None:
            raise ModelError(
                f"{label_of(model.source_directory)}: vocabulary: expected {rule} of the "
                f"model that it is to draft for, got {got}"
            )
        self._positions = min(sequence_length, model.args.max_context_length)
        self._pool = LonePool(model, self._positions)
        # Rows of padding in one table stand for nothing in the other.
        self._vocab_size = min(sizes)
        self.token_seconds = 0.0

    def begin(self, ids: Sequence[int], sampler: Sampler) -> None:
        """Read the prompt of an answer that the sampler will draw."""
        self._text = list(ids)
        self._sampler = sampler
        self._read()

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self._text.append(token)

    def match(self) -> tuple[int, int] | None:
        """Return that a guess rests on the whole text; None where its context is full."""
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
        """Run what is new in the text; return what may follow it, None where it does not
        fit.
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
        """Run tokens after the cached ones; return the logits [V] after the last of
        them.
        """
        part = Part(self._pool.sequence, ids, len(ids), 1)
        rows: Logits = self._pool.run([part])[0][0]
        return rows


class PassCosts:
    """Knows what a pass over several rows takes, and whether drafts have paid so far.

    Drafts have an account: the time that they took is subtracted, the steps that they
    saved are added, and every other pass adds `stake`, a small share of its time. While
    it is empty, nothing is looked up or drafted. So drafts cost little more than that
    share, whatever the model, the machine and the text are like. A plain step continues
    `requests` answers by one token each.
    """

    def __init__(self, stake: float = TEXT_STAKE, requests: int = 1) -> None:
        # the account, in seconds
        self.credit = 0.0
        self.requests = requests
        self._stake = stake
        self._plain_seconds = self._row_seconds = 0.0
        # By the number of rows, the time of a pass over that of a plain step.
        self._ratios: dict[int, float] = {}

    def ratio(self, rows: int, token_seconds: float = 0.0) -> float:
        """Return how many plain steps it takes to guess all tokens but one and to run all
        rows.
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
        """Learn how long a pass over a part of a prompt took, at least n - 1 rows beside
        one.
        """
        self._row_seconds = seconds / tokens
        self.add(self._stake * seconds)

    def note_pass(self, drafted: int, seconds: float) -> None:
        """Learn how long a pass took that checked as many drafted tokens, or none."""
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
        """Learn that a drafted token was right, which saves one of the answers a step."""
        self.add(self._plain_seconds / self.requests)

    def add(self, seconds: float) -> None:
        """Add to the account, or take from it what is negative."""
        most = _MOST_CREDIT * self._plain_seconds
        self.credit = min(self.credit + seconds, max(most, self.credit))


class Drafter:
    """Makes the drafts of one answer, gives out their logits, and learns what they are
    worth.

    With p the share of guessed tokens that were right, a step over n drafted ones yields
    1 + p + ... + p^n tokens, and takes as long as r(n + 1) plain steps. The n with the
    greatest quotient is drafted, and none where none pays. p is kept for each length of
    the end that was looked up. The tokens of other answers in a pass count too, once
    each.
    """

    def __init__(self, guesser: TextIndex | DraftModel, costs: PassCosts) -> None:
        self._guesser = guesser
        self._costs = costs
        self._acceptance = dict.fromkeys((WHOLE_TEXT, *END_LENGTHS), _FIRST_ACCEPTANCE)
        self._end_length = WHOLE_TEXT  # what the newest guess rests on
        self._expected: list[int] = []  # guessed tokens that may still be drawn
        self._rows: list[
            Logits
        ] = []  # the logits [V] after each of them that was drafted

    def observe(self, token: int) -> Logits | None:
        """Take a token that was drawn; return the logits [V] after it if they are
        there.
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
        """Return at most `most` tokens, to be checked beside `others` of other answers.

        `costs` are those of passes from now on, None for no change.
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
            # A guess from the text that is not drafted still teaches how often guesses
            # are right.
            self._expected = guesser.guess(
                place, count if guesser.token_seconds else max(count, 1)
            )
        self._costs.add(started - clock())
        return self._expected[:count]

    def best_count(self, most: int, others: int = 0) -> int:
        """Return how many tokens to draft, 0 to `most`,
        in a pass that checks others too.
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
            if seconds:  # nothing is guessed, so nothing is learned
                self._acceptance[self._end_length] += _FADING * (1.0 - p)
        return best

    def note_rows(self, rows: Logits) -> None:
        """Keep what a pass gave: the logits [1 + n, V] after the newest token and the n
        drafted.
        """
        self._rows = [*rows[1:]]
