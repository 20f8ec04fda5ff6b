"""Choosing the next token from the logits.

The steps follow the order of Hugging Face's generation: logit bias, repetition penalty,
frequency and presence penalty, temperature, top-k, top-p, min-p, then one draw. Each step
sees only the tokens that the step before it kept. With temperature 0 the token with the
largest (penalised) logit is chosen, the lowest id among equals, without a draw.
"""

import copy
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

# Imported here, because NumPy would import it at its first use, and extension modules
# lose a Ctrl-C during an import.
import numpy.random
import numpy.typing as npt

from ..sampling_steps import STEPS, STEPS_IN_ORDER
from .errors import NumericError, SamplingError

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.floating[Any]]

# A choice among very many weights does not sort all of them: a vocabulary has up to some
# hundred thousand tokens, of which usually a few hundred matter. Weights are floats from
# 0 to 1. They need not add up to 1, and their sums are float64. More weights than MANY
# are added up in rows, and only the largest of them, 1 of _NEAR, are sorted if these
# suffice.
MANY = 4096
_NEAR = 50
# The kth largest value is searched for among the maxima of k times this many groups.
_GROUPS_PER_RANK = 8
_LEAST_GROUP = 4
# If at most 1 of _FEW weights stays, their indices are returned instead of zeros.
_FEW = 4
# Weights of one partial sum in `draw`, which fixes the order of its summation.
_ROW = 256

_SMALLEST_RATE = 1e-37
_LARGEST_RATE = 1e38
_LARGEST_BIAS = 100.0


@dataclass(frozen=True)
class SamplingArgs:
    """Settings for choosing the next token; `sampling_steps.py` has their defaults.

    Args:
        temperature: Divides the logits, >= 0; 0 chooses the largest.
        top_k: Keeps the k largest logits (and equals of the smallest of them); 0 keeps
            all.
        top_p: Keeps the fewest tokens whose probabilities add up to at least top_p, 0 to
            1; 1 keeps all, 0 only the most probable.
        min_p: Keeps tokens at least min_p times as probable as the most probable, 0 to 1.
        repeat_penalty: Divides positive and multiplies negative logits of all tokens of
            the prompt and the answer so far, > 0; 1 changes nothing.
        seed: Seed of the random numbers, >= 0; None takes a seed from the operating
            system.
        frequency_penalty: Subtracted from the logit of a token for each occurrence in the
            answer, -2 to 2; 0 changes nothing.
        presence_penalty: Subtracted once from the logit of each token in the answer.
        logit_bias: Values from -100 to 100 by token id, which are added to the logits
            before all other steps; -100 bans a token, 100 forces it. A mapping, or pairs;
            stored as pairs by ascending id.

    Raises:
        SamplingError: A value is outside of its range.

    Source: Keskar et al., CTRL, 2019 (repetition penalty); Fan et al., 2018 (top-k);
    Holtzman et al., 2019 (top-p); Nguyen et al., 2024 (min-p); OpenAI's API (the last
    three).
    """

    temperature: float = STEPS["temperature"].default
    top_k: int = STEPS["top_k"].default
    top_p: float = STEPS["top_p"].default
    min_p: float = STEPS["min_p"].default
    repeat_penalty: float = STEPS["repeat_penalty"].default
    seed: int | None = None
    frequency_penalty: float = STEPS["frequency_penalty"].default
    presence_penalty: float = STEPS["presence_penalty"].default
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] = ()

    def __post_init__(self) -> None:
        for step in STEPS_IN_ORDER:
            value = getattr(self, step.name)
            _check(step.name, value, step.low, step.high, is_whole=step.is_whole)
            if step.is_low_excluded and value == step.low:
                rule = f"{step.name} must be above {step.low:g}"
                raise SamplingError(f"[sampling] {rule}: got {value:g}")
        if self.seed is not None:
            _check("seed", self.seed, 0, math.inf, is_whole=True)
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))


def _bias_pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    """Return a logit bias as pairs by ascending id, or raise SamplingError."""
    try:
        items = getattr(bias, "items", lambda: bias)()
        pairs = [(token, value) for token, value in items]
    except (TypeError, ValueError):
        rule = "logit_bias must map token ids to numbers"
        raise SamplingError(f"[sampling] {rule}: got {type(bias).__name__}") from None
    values = dict[int, float]()
    for token, value in pairs:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            shown = ascii(token)[:80]
            raise SamplingError(
                f"[sampling] logit_bias must have ids of at least 0: got {shown}"
            )
        if token in values:
            raise SamplingError(
                f"[sampling] logit_bias must have each id once: got {token} twice"
            )
        _check("logit_bias", value, -_LARGEST_BIAS, _LARGEST_BIAS, f" for token {token}")
        values[token] = float(value)
    return tuple(sorted(values.items()))


def _check(
    name: str,
    value: float,
    low: float,
    high: float,
    place: str = "",
    *,
    is_whole: bool = False,
) -> None:
    """Raise SamplingError unless a value is a finite number from low to high.

    The message contains `place` after the name.
    """
    if isinstance(value, bool) or not isinstance(
        value, int if is_whole else (int, float)
    ):
        kind = "a whole number" if is_whole else "a number"
        raise SamplingError(
            f"[sampling] {name} must be {kind}{place}: got {type(value).__name__}"
        )
    if isinstance(value, int) and abs(value).bit_length() > 1000:
        raise SamplingError(
            f"[sampling] {name} must be finite{place}: got a number beyond float64"
        )
    if not (math.isfinite(value) and low <= value <= high):
        rule = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        rule = rule if math.isfinite(value) else f"finite and {rule}"
        raise SamplingError(f"[sampling] {name} must be {rule}{place}: got {value}")


@dataclass(frozen=True)
class SamplingStage:
    """One step of the sampling, or the model before all steps.

    Attributes:
        name: `model`, or the setting of the step.
        value: The value of the setting; None for the model and for `logit_bias`.
        kept: The number of tokens that can still be drawn after it.
    """

    name: str
    value: float | None
    kept: int


@dataclass(frozen=True)
class Candidate:
    """A token that might come next.

    Attributes:
        token_id: Its id.
        log_probability: Natural logarithm of its probability by the model, before all
            steps: its logit - log(sum(exp(logits))); -inf for a logit of -inf.
        probabilities: Its probability after each stage; 0 if the stage excludes it.
    """

    token_id: int
    log_probability: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """How one token was chosen.

    Attributes:
        token_id: The drawn token.
        position: Its place in the context.
        stages: The model and the active steps of the sampling, in their order.
        candidates: The most probable tokens by the model, in descending order, then the
            drawn token if it is not among them.
    """

    token_id: int
    position: int
    stages: tuple[SamplingStage, ...]
    candidates: tuple[Candidate, ...]


# Settings that do not change the probabilities of the model.
STEPS_OFF = SamplingArgs(**{name: step.off for name, step in STEPS.items()}, seed=0)


class Sampler:
    """Draws the tokens of one answer.

    Attributes:
        args: The settings.
        seed: The seed in use; equal seeds, settings and logits give equal tokens.
        last_random: The number from [0, 1) that drew the last token; None if no number
            was needed.
    """

    def __init__(self, args: SamplingArgs) -> None:
        self.args = args
        self.seed = (
            int.from_bytes(os.urandom(4), "little") if args.seed is None else args.seed
        )
        self.last_random: float | None = None
        self._random = numpy.random.default_rng(self.seed)
        self._seen: Ids = np.empty(0, np.int64)
        self._drawn: Counter[int] = Counter()
        bias = dict(args.logit_bias)
        self._biased: Ids = np.fromiter(bias.keys(), np.int64, len(bias))  # ascending
        self._bias: Floats = np.fromiter(bias.values(), np.float64, len(bias))
        # Reused, because allocating arrays over a vocabulary takes longer than filling
        # them.
        self._changed: Logits = np.empty(0, np.float32)
        self._weighed: Logits = np.empty(0, np.float32)

    def observe(self, ids: Sequence[int], is_drawn: bool = False) -> None:
        """Add tokens of the prompt or the answer, to which the penalties apply.

        Args:
            ids: The tokens.
            is_drawn: Whether they belong to the answer.
        """
        if is_drawn and (self.args.frequency_penalty or self.args.presence_penalty):
            self._drawn.update(ids)
        if self.args.repeat_penalty != 1.0:
            self._seen = np.union1d(self._seen, np.asarray(ids, np.int64))

    def check_vocabulary(self, size: int) -> None:
        """Raise SamplingError if the logit bias has a token beyond the vocabulary."""
        if self._biased.size and self._biased[-1] >= size:
            rule = "logit_bias must have ids below the size of the vocabulary"
            raise SamplingError(f"[sampling] {rule}: {self._biased[-1]} >= {size}")

    def fork(self, vocabulary: int) -> "Sampler":
        """Return an independent sampler that will draw the same random numbers.

        It draws for a vocabulary of the first tokens of this one. The bias of other
        tokens is dropped.
        """
        other = copy.copy(self)
        other._random = copy.deepcopy(self._random)
        other._drawn = self._drawn.copy()
        shared = int(np.searchsorted(self._biased, vocabulary))
        other._biased = self._biased[:shared]
        other._bias = self._bias[:shared]
        return other

    def sample(self, logits: Logits, position: int) -> int:
        """Choose one token.

        Args:
            logits: float32 [V]; not modified.
            position: Position of the token in the context, for the error about logits.

        Raises:
            NumericError: A logit is NaN or +inf, or all are -inf.
            SamplingError: The logit bias has a token beyond V.
        """
        if not math.isfinite(logits.max()):
            at = int(np.argmax(logits))  # the first NaN counts as the maximum
            raise NumericError(
                f"[sampling] logits must be finite: got {logits[at]} for token {at} at "
                f"position {position}"
            )
        if self.args.temperature == 0.0:
            self.last_random = None
            return int(self._apply_penalties(logits).argmax())
        ids, weights = self._weights(logits)
        self.last_random = self._random.random()
        place = draw(weights, self.last_random)
        return place if ids is None else int(ids[place])

    def distribution(self, logits: Logits) -> tuple[Ids, Floats]:
        """Return the tokens that can be drawn, and their probabilities.

        Args:
            logits: float32 [V].

        Returns:
            Ids int64 [n], ascending, and probabilities float64 [n].
        """
        if self.args.temperature == 0.0:
            return np.array([self._apply_penalties(logits).argmax()]), np.ones(1)
        ids, weights = self._weights(logits)
        kept = np.flatnonzero(weights)
        probabilities = weights[kept].astype(np.float64)
        return kept if ids is None else ids[kept], probabilities / probabilities.sum()

    def stages(self, logits: Logits) -> Iterator[tuple[str, float | None, Ids, Floats]]:
        """Yield the model's distribution, then the distribution after each active step.

        Args:
            logits: float32 [V].

        Yields:
            `model` and None, or a setting and its value; then ids and probabilities as in
            `distribution`. A token is drawn from the last ones. A temperature of 0 leaves
            one token, and no step follows.
        """
        for name, value, partial in self._partial_samplers():
            yield name, value, *partial.distribution(logits)

    def changed_logits(
        self, logits: Logits
    ) -> Iterator[tuple[str, float | None, Logits]]:
        """Yield the logits after the bias, and after each active penalty.

        Args:
            logits: float32 [V].

        Yields:
            `logit_bias` and None, or a setting and its value; then float32 [V], in memory
            that the next step overwrites.
        """
        for name, value, partial in self._partial_samplers():
            if name == "logit_bias" or (name in STEPS and STEPS[name].is_penalty):
                yield name, value, partial._apply_penalties(logits)

    def _partial_samplers(self) -> Iterator[tuple[str, float | None, "Sampler"]]:
        """Yield one sampler repeatedly: without steps, then with one more each time."""
        partial = copy.copy(self)
        partial.args = STEPS_OFF
        partial._biased = self._biased[:0]
        yield "model", None, partial
        if self._biased.size:
            partial._biased = self._biased
            yield "logit_bias", None, partial
        for step in STEPS_IN_ORDER:
            value = getattr(self.args, step.name)
            if value != step.off and partial.args.temperature > 0.0:
                partial.args = replace(partial.args, **{step.name: value})
                yield step.name, value, partial

    def _weights(self, logits: Logits) -> tuple[Ids | None, Weights]:
        """Return the ids that top-k keeps, and their weights.

        Returns:
            Ids int64 [n], ascending, or None for all tokens; weights [n]. The largest
            weight is 1, and weights of tokens that cannot be drawn are 0. They are
            float64, or float32 if n is above 4096, in memory that the next call may
            overwrite.
        """
        args = self.args
        ids = None
        logits = self._apply_penalties(logits)
        if 0 < args.top_k < logits.size:
            ids = at_least_kth_largest(logits, args.top_k)
            logits = logits[ids]
        weights = self._exponentials(logits)
        if args.top_p < 1.0 or args.min_p > 0.0:
            smallest = args.min_p
            count = weights.size
            if args.top_p < 1.0:
                last, ties = smallest_of_top_p(weights, args.top_p)
                if last >= smallest:
                    smallest = last
                    count = ties
            chosen, weights = leave_out(weights, smallest, count)
            if chosen is not None:
                ids = chosen if ids is None else ids[chosen]
        return ids, weights

    def _apply_penalties(self, logits: Logits) -> Logits:
        """Return the logits with the bias and the penalties."""
        if not (self._seen.size or self._drawn or self._biased.size):
            return logits
        self.check_vocabulary(logits.size)
        if self._changed.size != logits.size:
            self._changed = np.empty_like(logits)
        changed = self._changed
        penalty = self.args.repeat_penalty
        np.copyto(changed, logits)
        if self._biased.size:
            _replace_logits(changed, self._biased, changed[self._biased] + self._bias)
        values = changed[self._seen].astype(np.float64)
        with np.errstate(over="ignore"):
            pushed = np.where(values > 0.0, values / penalty, values * penalty)
        _replace_logits(changed, self._seen, pushed)
        if self._drawn:
            drawn = np.fromiter(self._drawn, np.int64)
            counts = np.fromiter(self._drawn.values(), np.float64)
            pushed = changed[drawn] - counts * self.args.frequency_penalty
            _replace_logits(changed, drawn, pushed - self.args.presence_penalty)
        return changed

    def _exponentials(self, logits: Logits) -> Weights:
        """Compute exp((logit - max) / temperature), in float32 for very many logits."""
        largest = logits.max()
        temperature = self.args.temperature
        # A tiny temperature gives -inf, and exp(-inf) is 0; so does a logit of -inf, at
        # any temperature.
        with np.errstate(over="ignore", under="ignore"):
            if logits.size <= MANY:
                few: Floats = (logits.astype(np.float64) - float(largest)) / temperature
                return np.exp(few, out=few)
            if self._weighed.size < logits.size:
                self._weighed = np.empty(logits.size, np.float32)
            weights = self._weighed[: logits.size]
            np.subtract(logits, largest, out=weights)
            # In float32, an infinite rate times the 0 of the maximum would be NaN.
            rate = min(max(1.0 / temperature, _SMALLEST_RATE), _LARGEST_RATE)
            np.multiply(weights, np.float32(rate), out=weights)
            return np.exp(weights, out=weights)


def _replace_logits(logits: Logits, ids: Ids, values: Floats) -> None:
    """Replace logits of tokens, but keep finite logits finite for any penalty."""
    limit = float(np.finfo(np.float32).max)
    logits[ids] = np.where(
        np.isfinite(logits[ids]), np.clip(values, -limit, limit), logits[ids]
    )


def explain_choice(
    sampler: Sampler, logits: Logits, token_id: int, position: int, count: int
) -> Choice:
    """Explain how a token was chosen, before the sampler that drew it observes it.

    Args:
        sampler: The sampler.
        logits: float32 [V].
        token_id: The token.
        position: Its position in the context.
        count: The number of candidates; at least one is returned.
    """
    near = at_least_kth_largest(logits, min(count, logits.size))
    # Among equal logits, the lowest id precedes.
    near = near[np.argsort(-logits[near], kind="stable")][:count]
    tokens = [int(token) for token in near if logits[token] > -math.inf]
    if token_id not in tokens:
        tokens.append(token_id)
    stages = []
    columns = []
    for name, value, ids, probabilities in sampler.stages(logits):
        stages.append(SamplingStage(name, value, ids.size))
        places = np.minimum(np.searchsorted(ids, tokens), ids.size - 1)
        columns.append(
            np.where(ids[places] == tokens, probabilities[places], 0.0).tolist()
        )
    exact: Floats = logits.astype(np.float64)
    largest = float(exact.max())
    log_sum = largest + math.log(np.exp(exact - largest).sum())
    log_probabilities = [float(exact[token]) - log_sum for token in tokens]
    rows = zip(*columns, strict=True)
    candidates = tuple(map(Candidate, tokens, log_probabilities, rows))
    return Choice(token_id, position, tuple(stages), candidates)


def at_least_kth_largest(values: Weights, k: int) -> Ids:
    """Return the ascending indices of all values [n] >= the kth largest, 1 <= k <= n."""
    groups = k * _GROUPS_PER_RANK
    length = values.size // groups
    if length < _LEAST_GROUP:
        return np.flatnonzero(
            values >= np.partition(values, values.size - k)[values.size - k]
        )
    # k of the groups have a maximum that is not below the kth largest maximum, so at
    # least k values are not below it either. (The few values that fill no group can only
    # raise the kth largest value.)
    maxima = values[: length * groups].reshape(length, groups).max(axis=0)
    near = np.flatnonzero(values >= np.partition(maxima, groups - k)[groups - k])
    kept = values[near]
    chosen: Ids = near[kept >= np.partition(kept, kept.size - k)[kept.size - k]]
    return chosen


def leave_out(
    weights: Weights, smallest: float, count: int
) -> tuple[Ids | None, Weights]:
    """Exclude weights [n] below the smallest, and ties with it beyond the first `count`.

    If few weights stay, return their indices, ascending, and these weights. Otherwise
    return None and the given array, in which the excluded weights are 0.
    """
    kept = weights >= smallest
    indices = None
    if np.count_nonzero(kept) <= weights.size // _FEW:
        indices = np.flatnonzero(kept)
        weights = weights[indices]
    else:
        np.multiply(weights, kept, out=weights)
    weights[np.flatnonzero(weights == smallest)[count:]] = 0.0
    return indices, weights


def smallest_of_top_p(weights: Weights, top_p: float) -> tuple[float, int]:
    """Find the fewest weights [n], the largest first, whose sum is at least top_p of all.

    Return the smallest of them, and the number of weights of that size among them.
    """
    if weights.size > MANY:  # a few weights usually reach the share
        near = weights.size // _NEAR
        above = weights > 0.0
        # A mask leaves many equal zeros, among which a search is slow.
        few = np.count_nonzero(above) < near
        largest = weights[above if few else at_least_kth_largest(weights, near)]
        part = float(largest.sum(dtype=np.float64) / weights.sum(dtype=np.float64))
        if part >= top_p:
            weights = largest
            top_p = top_p / part
    descending = np.sort(weights)[::-1]
    place = draw(descending, top_p, "left")
    smallest = float(descending[place])
    return smallest, place + 1 - int(np.count_nonzero(weights > smallest))


def draw(weights: Weights, share: float, side: Literal["left", "right"] = "right") -> int:
    """Draw an index with a probability proportional to its weight; the sum is above 0.

    The share is a random number from [0, 1). Many weights are added up in rows of 256,
    and then the sums of the rows. A sum that equals the share selects the weight to its
    left or right.
    """
    if weights.size <= MANY:
        return _place(weights, share, side)[0]
    starts = np.arange(0, weights.size, _ROW)
    row, share = _place(np.add.reduceat(weights, starts, dtype=np.float64), share, side)
    return row * _ROW + _place(weights[row * _ROW : (row + 1) * _ROW], share, side)[0]


def _place(
    weights: Weights, share: float, side: Literal["left", "right"]
) -> tuple[int, float]:
    """Return the index at which the cumulative sum reaches a share of the total.

    The second value is the remaining share within that weight.
    """
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = share * float(cumulative[-1])
    place = int(np.searchsorted(cumulative, target, side))
    if place == weights.size:  # the target was rounded up to the total
        return int(np.flatnonzero(weights)[-1]), 1.0
    before = float(cumulative[place - 1]) if place else 0.0
    return place, min((target - before) / float(weights[place]), 1.0)
