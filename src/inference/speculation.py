"""Guessing the next tokens, so that one step can check several of them.

Answers repeat: names, code, quotations of the prompt. What followed the last few tokens at an
earlier place is a draft of what follows now. Or a smaller model with the same vocabulary drafts. A
step over the newest token and its draft takes little longer than a step over one, because both read
all weights once, and it gives the logits after each of them. Every token is still drawn by the
sampler from the logits that a plain step would have given, bit for bit; a draft only decides
whether those logits are there already.

Source: Saxena, Prompt Lookup Decoding, 2023; the `lookup` example of llama.cpp; for a draft model
Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2022.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..model import PREFILL_CHUNK, InferenceContext, Model, ModelError
from ..trace import clock, mark
from ..untrusted import label_of
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
# How far a measurement fades towards "a row costs nothing" each time it forbids a draft, so that a
# machine that was busy once does not prevent drafts for ever.
_FADING = 0.01
# A draft must promise at least this much more than a plain step.
_LEAST_GAIN = 1.05
# Drafts may cost this share of the time of an engine, beside what earlier drafts have saved: of
# those that nobody asked for less than of a model that was given for it.
TEXT_STAKE, MODEL_STAKE = 0.01, 0.05
# The most plain steps that drafts may lose again of what they have saved.
_MOST_CREDIT = 8.0


class CachedSequence:
    """Runs tokens with a model after those that are cached.

    Args:
        model: The model.
        sequence_length: Positions of the cache.
    """

    def __init__(self, model: Model, sequence_length: int) -> None:
        self.model = model
        self.context = InferenceContext(model.args, sequence_length)
        # The tokens whose keys and values are at positions 0, 1, ... of the cache. They are noted
        # when the cache holds them: wherever an interrupt falls, what is noted is true.
        self.ids: list[int] = []
        self.was_eager = False  # whether some may have run stage by stage, which rounds differently

    def clear(self) -> None:
        """Forget all tokens."""
        self.ids = []
        self.context.clear()

    def adopt(self, ids: Sequence[int]) -> None:
        """Count tokens as cached whose keys and values were written at positions 0, 1, ..."""
        self.context.begin(0, len(ids))
        self.context.end(0, len(ids))
        self.ids, self.was_eager = list(ids), False

    def reusable(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a text are cached; its last one always has to be run."""
        most = min(len(ids) - 1, len(self.ids))
        return next((n for n in range(most) if ids[n] != self.ids[n]), most)

    def run(self, ids: list[int], drafted: Sequence[int] = ()) -> Logits:
        """Run tokens after the cached ones, and what may follow the last of them.

        Drafted tokens need a single id before them, and do not become cached.

        Returns:
            The logits after the last id and after each of the n drafted tokens [1 + n, V].
        """
        start_pos = len(self.ids)
        mark(3, position=start_pos, T=len(ids))
        result = self.model.transformer.forward(
            self.context, [*ids, *drafted], start_pos, all_positions=bool(drafted)
        )
        self.was_eager = self.context.is_eager or (self.was_eager and start_pos > 0)
        if drafted:
            self.context.length = start_pos + len(ids)
        self.ids.extend(ids)
        rows: Logits = result.numpy()
        return rows

    def confirm(self, token: int) -> None:
        """Count a drafted token as cached, the next one of the last run."""
        self.context.length += 1
        self.ids.append(token)


class TextIndex:
    """Finds an earlier place of the last 2 to 4 tokens of a text.

    Args:
        ids: The text so far; of a very long one, only the end is kept.
    """

    token_seconds = 0.0  # what it takes to guess one, next to nothing

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids[-_LONGEST_TEXT:])
        self._text = ""

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self._ids.append(token)

    def match(self) -> tuple[int, int] | None:
        """Find the longest end of the text that occurred earlier.

        Returns:
            Its length and the place of what followed it then, or None if no end did.
        """
        new = self._ids[len(self._text) :]
        self._text += "".join([chr(token % _CHARACTERS) for token in new])
        text, found = self._text, None
        stop = len(text) - 1  # the end itself has no token after it
        for length in END_LENGTHS:
            at = text.rfind(text[-length:], 0, stop) if stop >= length else -1
            if at < 0:
                break
            stop = at + length  # a longer end occurred here or further back
            found = length, stop
        return found

    def guess(self, place: int, count: int) -> list[int]:
        """Copy tokens from a place on; at the end of the text the copy goes on with itself."""
        text = self._ids[place : place + count]
        return [text[i % len(text)] for i in range(count)]


class DraftModel:
    """Lets a smaller model go on with a text.

    It draws with the same settings and random numbers as the sampler of the answer will, so that
    models that agree on what is probable agree on the tokens.

    Args:
        model: The smaller model.
        sequence_length: Positions of the answer's context; its own has no more.
        vocab_size: V of the model that it drafts for.
    """

    def __init__(self, model: Model, sequence_length: int, vocab_size: int) -> None:
        positions = min(sequence_length, model.args.max_context_length)
        self._cached = CachedSequence(model, positions)
        # Rows of padding in either table may stand for nothing in the other.
        self._vocab_size = min(vocab_size, model.args.vocab_size)
        self.token_seconds = 0.0

    def begin(self, ids: Sequence[int], sampler: Sampler) -> None:
        """Read a prompt.

        Args:
            ids: The tokens of the prompt.
            sampler: The one that draws the answer.
        """
        self._text, self._sampler = list(ids), sampler
        self._read()

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self._text.append(token)

    def match(self) -> tuple[int, int] | None:
        """Return that a guess rests on the whole text; None where its context is full."""
        end = len(self._text)
        return (WHOLE_TEXT, end) if end <= self._cached.context.sequence_length else None

    def guess(self, place: int, count: int) -> list[int]:
        """Return up to `count` tokens that may follow."""
        started, tokens = time.perf_counter(), list[int]()
        sampler, logits = self._sampler.fork(), self._read()
        count = min(count, self._cached.context.sequence_length - place + 1)
        with suppress(NumericError):  # the answer does not depend on this model
            while logits is not None and len(tokens) < count:
                token = sampler.sample(logits, place + len(tokens))
                if token >= self._vocab_size:
                    break
                tokens.append(token)
                sampler.observe((token,), is_drawn=True)
                if len(tokens) < count:
                    logits = self._cached.run([token])[0]
        if tokens:
            seconds = (time.perf_counter() - started) / len(tokens)
            self.token_seconds += _TIME_WEIGHT * (seconds - self.token_seconds)
        return tokens

    def _read(self) -> Logits | None:
        """Run what is new in the text; return what may follow it, None where it does not fit."""
        cached, text = self._cached, self._text
        del cached.ids[cached.reusable(text) :]
        logits = None
        new = text[len(cached.ids) :]
        if len(text) <= cached.context.sequence_length and max(new) < self._vocab_size:
            while (start := len(cached.ids)) < len(text):
                logits = cached.run(text[start : start + PREFILL_CHUNK])[0]
        return logits


def check_same_vocabulary(model: Model, draft_model: Model) -> None:
    """Refuse a draft model whose ids stand for other tokens.

    Rows of padding at the end of a table do not count. Without tokenizers the sizes must agree.

    Raises:
        ModelError: The vocabularies differ.
    """
    label = label_of(draft_model.source_directory)
    sizes = draft_model.args.vocab_size, model.args.vocab_size
    if model.tokenizer is None or draft_model.tokenizer is None:
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"{label}: vocabulary: expected the {sizes[1]} tokens of the model that it is to "
                f"draft for, got {sizes[0]}"
            )
        return
    at = model.tokenizer.first_difference(draft_model.tokenizer)
    if at is not None:
        raise ModelError(
            f"{label}: vocabulary: expected that of the model that it is to draft for, got another "
            f"token {at}"
        )


class PassCosts:
    """Knows what a pass over several rows takes, and whether drafts have paid so far.

    The time is learned from plain steps, from prompts (a pass over n tokens takes at least n - 1
    rows beside the first) and from steps that checked a draft. Drafts also have an account: the
    time that they took is subtracted, the steps that they saved are added, and every other pass
    adds a small share of its time. While the account is empty, nothing is looked up or drafted. So
    drafts cost little more than that share, whatever the model, the machine and the text are like.

    Args:
        stake: The share.
        requests: How many answers a pass continues; a plain step is a pass over a row for each.
    """

    def __init__(self, stake: float = TEXT_STAKE, requests: int = 1) -> None:
        self.credit, self.requests = 0.0, requests  # the account, in seconds
        self._stake = stake
        self._plain_seconds = 0.0
        self._row_seconds = 0.0
        # By the number of rows, the time of a pass over that of a plain step.
        self._ratios: dict[int, float] = {}

    def ratio(self, rows: int, token_seconds: float = 0.0) -> float:
        """Return how many plain steps a pass over a number of rows takes.

        Args:
            rows: 1, and the drafted tokens of all answers.
            token_seconds: The time that it takes to guess one of them.
        """
        guessing = (rows - 1) * token_seconds / self._plain_seconds
        estimated = 1.0 + (rows - 1) * self._row_seconds / self._plain_seconds
        return self._ratios.get(rows, estimated) + guessing

    @property
    def allows_drafts(self) -> bool:
        """Return whether there is anything on the account."""
        return self.credit > 0.0

    def fade(self) -> None:
        """Fade the measurements that forbid drafts."""
        self._row_seconds *= 1.0 - _FADING
        for rows, ratio in self._ratios.items():
            self._ratios[rows] = ratio + _FADING * (1.0 - ratio)

    def note_prompt(self, tokens: int, seconds: float) -> None:
        """Learn how long a pass over a part of a prompt took."""
        self._row_seconds = seconds / tokens
        self.add(self._stake * seconds)

    def note_pass(self, drafted: int, seconds: float) -> None:
        """Learn how long a pass took that checked as many drafted tokens, or none."""
        if drafted:
            self.note_check(1 + drafted, seconds)
        else:
            self.note_plain(seconds)

    def note_plain(self, seconds: float) -> None:
        """Learn how long a step over one token took."""
        plain = self._plain_seconds or seconds
        seconds = min(seconds, _LONGEST_RATIO * plain)
        self._plain_seconds = plain + _TIME_WEIGHT * (seconds - plain)
        self.add(self._stake * seconds)

    def note_check(self, rows: int, seconds: float) -> None:
        """Learn how long a step over one token and a draft took."""
        plain = self._plain_seconds or seconds
        ratio = min(seconds / plain, max(_LONGEST_RATIO, rows))
        before = self._ratios.get(rows, ratio)
        self._ratios[rows] = before + _TIME_WEIGHT * (ratio - before)
        self.add((1.0 - ratio) * plain)

    def note_saved_step(self) -> None:
        """Learn that a drafted token was right, which saves one of the answers a step."""
        self.add(self._plain_seconds / self.requests)

    def add(self, seconds: float) -> None:
        """Add to the account, or take from it what is negative."""
        most = _MOST_CREDIT * self._plain_seconds
        self.credit = min(self.credit + seconds, max(most, self.credit))


class DraftLength:
    """Decides how many drafted tokens a step checks, from what drafts gave and what passes take.

    With p the share of drafted tokens that were right, a step over n of them yields
    1 + p + ... + p^n tokens, and takes as long as r(n + 1) plain steps. The n with the greatest
    quotient is chosen, and 0 where none pays. p is kept for each length of the end that was looked
    up, and is also learned while nothing is drafted. Where a pass continues several answers, the
    tokens of the others count too, once each.
    """

    def __init__(self, costs: PassCosts) -> None:
        self._acceptance = dict.fromkeys((WHOLE_TEXT, *END_LENGTHS), _FIRST_ACCEPTANCE)
        self.costs = costs

    def best(self, end_length: int, most: int, token_seconds: float = 0.0, drafted: int = 0) -> int:
        """Return how many tokens to draft after an end of this length, 0 to `most`.

        Args:
            end_length: What the guess rests on.
            most: The most that are allowed.
            token_seconds: The time that it takes to guess one.
            drafted: Tokens that the pass checks for other answers.
        """
        p, costs = self._acceptance[end_length], self.costs
        others, before = costs.requests - 1, costs.ratio(1 + drafted)
        best, best_gain = 0, _LEAST_GAIN
        expected, chance = 1.0, 1.0
        for count in range(1, most + 1):
            chance *= p
            expected += chance
            ratio = costs.ratio(1 + drafted + count, token_seconds) / before
            gain = (others + expected) / (costs.requests * ratio)
            if gain > best_gain:
                best, best_gain = count, gain
        if not best:
            costs.fade()
            if token_seconds:  # nothing is guessed, so nothing is learned
                self._acceptance[end_length] += _FADING * (1.0 - p)
        return best

    def note_guess(self, end_length: int, is_right: bool) -> None:
        """Learn whether a guessed token was the one that was drawn."""
        share = self._acceptance[end_length]
        self._acceptance[end_length] = share + _ACCEPTANCE_WEIGHT * (is_right - share)


@dataclass
class _Guess:
    """What is expected next."""

    end_length: int  # length of the end that it followed earlier
    tokens: list[int]  # at least one; a prefix of them was drafted, perhaps an empty one
    rows: Logits | None = None  # [1 + n, V] after the token before and each of the n drafted ones
    confirmed: int = 0  # how many tokens were drawn so far; the others may still come


class Drafter:
    """Makes the drafts of one answer, keeps their logits, and learns from what became of them.

    Args:
        guesser: Where they come from.
        costs: What the passes of the engine take.
    """

    def __init__(self, guesser: TextIndex | DraftModel, costs: PassCosts) -> None:
        self._guesser = guesser
        self.seconds = 0.0  # that making a draft took, until its step is noted
        self._length = DraftLength(costs)
        self._guess: _Guess | None = None

    def observe(self, token: int) -> Logits | None:
        """Take a token that was drawn.

        Returns:
            The logits [V] after it, if it was drafted and all drafted tokens before it were right.
        """
        self._guesser.append(token)
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
        if guess.rows is None:
            return None
        self._length.costs.note_saved_step()
        row: Logits = guess.rows[guess.confirmed]
        return row

    def draft(self, most: int, costs: PassCosts | None = None, drafted: int = 0) -> list[int]:
        """Return what the next step is to check after the newest token; often nothing.

        Args:
            most: The most tokens that may be drafted, at least 0.
            costs: What passes take from now on; None for no change.
            drafted: Tokens that the pass checks for other answers.
        """
        self._guess = None
        if costs is not None:
            self._length.costs = costs
        if not self._length.costs.allows_drafts:
            return []
        started = clock()
        tokens = self._guessed(min(most, LONGEST_DRAFT - drafted), drafted)
        self.seconds = clock() - started
        return tokens

    def _guessed(self, most: int, drafted: int) -> list[int]:
        guesser = self._guesser
        if (match := guesser.match()) is None:
            return []
        end_length, place = match
        count = self._length.best(end_length, most, guesser.token_seconds, drafted)
        tokens = guesser.guess(place, count if guesser.token_seconds else max(count, 1))
        if tokens:
            self._guess = _Guess(end_length, tokens)
        return tokens[:count]

    def note_step(self, rows: Logits, seconds: float | None) -> None:
        """Take what came of a step.

        Args:
            rows: The logits [1 + n, V] after the newest token and the n drafted ones.
            seconds: The time of the pass; None where the costs know it.
        """
        if self.seconds:
            self._length.costs.add(-self.seconds)
            self.seconds = 0.0
        if self._guess is not None and len(rows) > 1:
            self._guess.rows = rows
        if seconds is not None:
            self._length.costs.note_pass(len(rows) - 1, seconds)
