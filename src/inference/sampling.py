"""Sampling of the next token from the logits.

The sampling steps are in the same order as in Hugging Face's `generate`: logit bias,
repetition penalty, frequency and presence penalty, temperature, top-k, top-p, min-p, and
then one random draw. Each step sees only the tokens that the previous step kept. If the
temperature is 0, the token with the largest logit after all penalties is chosen, without
a random draw. Among equal logits, the lowest token id is chosen.
"""

import copy
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

# NumPy imports this module lazily, and its extension modules can lose a Ctrl-C during the
# import, so it is imported here.
import numpy.random
import numpy.typing as npt

from ..sampling_steps import STEPS, STEPS_IN_ORDER
from .errors import NumericError, SamplingError

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.floating[Any]]

# A vocabulary has up to a few hundred thousand tokens, but usually only a few hundred of
# them matter, so not all weights are sorted. Weights are floats from 0 to 1. They do not
# need to sum to 1, and their sums are float64. More than MANY weights are summed in rows,
# and only the largest of them, one in _NEAR, are sorted if these are sufficient.
MANY = 4096
_NEAR = 50
# The search for the kth largest value divides the values into k times this many groups.
_GROUPS_PER_RANK = 8
_LEAST_GROUP = 4
# If at most one in _FEW weights is kept, indices are returned instead of zeroed weights.
_FEW = 4
# Weights per partial sum in `draw`, which determines the order of summation.
_ROW = 256

_SMALLEST_RATE = 1e-37
_LARGEST_RATE = 1e38
_LARGEST_BIAS = 100.0


@dataclass(frozen=True)
class SamplingArgs:
    """Sampling settings. `sampling_steps.py` defines their defaults.

    Args:
        temperature: The divisor of the logits, >= 0. 0 always selects the largest logit.
        top_k: Keep only the k largest logits, and any that equal the smallest of them. 0
            keeps all tokens.
        top_p: Keep the smallest set of tokens whose probabilities sum to at least top_p,
            from 0 to 1. 1 keeps all tokens, and 0 keeps only the most probable token.
        min_p: Keep only tokens whose probability is at least min_p times that of the most
            probable token, from 0 to 1.
        repeat_penalty: The factor, > 0, by which positive logits are divided and negative
            logits are multiplied, for all tokens of the prompt and of the answer so far.
            1 has no effect.
        seed: The random seed, >= 0, or None for a seed from the operating system.
        frequency_penalty: A value from -2 to 2 that is subtracted from a token's logit
            for each occurrence in the answer. 0 has no effect.
        presence_penalty: A value from -2 to 2 that is subtracted once from the logit of
            each token that occurs in the answer. 0 has no effect.
        logit_bias: Values from -100 to 100 that are added to the logits before all other
            steps, as a mapping from token ids or as pairs. -100 bans a token, and 100
            forces it. The bias is stored as pairs in ascending order of ids.

    Raises:
        SamplingError: If a value is out of range.

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
    """Return a logit bias as pairs in ascending order of ids, or raise SamplingError."""
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
                f"[sampling] the ids in logit_bias must be >= 0: got {shown}"
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
    """Raise SamplingError unless `value` is a finite number from `low` to `high`.

    The error message contains `place` after the name.
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
    """A sampling step, or the model's distribution before the first step.

    Attributes:
        name: The name of the step's setting, or `model`.
        value: The value of the setting, or None for `model` and `logit_bias`.
        kept: The number of tokens that can still be drawn after this stage.
    """

    name: str
    value: float | None
    kept: int


@dataclass(frozen=True)
class Candidate:
    """A candidate for the next token.

    Attributes:
        token_id: The token's id.
        log_probability: The natural logarithm of the token's probability before all
            sampling steps, logit - log(sum(exp(logits))), or -inf for a logit of -inf.
        probabilities: The token's probability after each stage, 0 from the stage on that
            excludes it.
    """

    token_id: int
    log_probability: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """How one token was chosen.

    Attributes:
        token_id: The drawn token.
        position: The token's position in the context.
        stages: The model's distribution and the active sampling steps, in order.
        candidates: The tokens with the highest probabilities before sampling, in
            descending order, followed by the drawn token if it is not one of them.
    """

    token_id: int
    position: int
    stages: tuple[SamplingStage, ...]
    candidates: tuple[Candidate, ...]


# Settings with which sampling does not change the model's probabilities.
STEPS_OFF = SamplingArgs(**{name: step.off for name, step in STEPS.items()}, seed=0)


class Sampler:
    """Draw the tokens of one answer.

    Attributes:
        args: The settings.
        seed: The seed in use. The same seed, settings and logits always result in the
            same tokens.
        last_random: The random number from [0, 1) that selected the last token, or None
            if none was needed.
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
        # Both buffers are reused, because allocating vocabulary-sized arrays takes longer
        # than filling them.
        self._changed: Logits = np.empty(0, np.float32)
        self._weighed: Logits = np.empty(0, np.float32)

    def observe(self, ids: Sequence[int], is_drawn: bool = False) -> None:
        """Record tokens of the prompt or the answer, to which the penalties apply.

        Args:
            ids: The tokens.
            is_drawn: Whether the tokens belong to the answer.
        """
        if is_drawn and (self.args.frequency_penalty or self.args.presence_penalty):
            self._drawn.update(ids)
        if self.args.repeat_penalty != 1.0:
            self._seen = np.union1d(self._seen, np.asarray(ids, np.int64))

    def check_vocabulary(self, size: int) -> None:
        """Raise SamplingError if the logit bias contains an id outside the vocabulary."""
        if self._biased.size and self._biased[-1] >= size:
            rule = "logit_bias must have ids below the size of the vocabulary"
            raise SamplingError(f"[sampling] {rule}: {self._biased[-1]} >= {size}")

    def fork(self, vocabulary: int) -> "Sampler":
        """Return an independent copy that will draw the same random numbers.

        The copy is for a vocabulary that consists of the first `vocabulary` tokens of
        this one. The bias of all other tokens is dropped.
        """
        other = copy.copy(self)
        other._random = copy.deepcopy(self._random)
        other._drawn = self._drawn.copy()
        shared = int(np.searchsorted(self._biased, vocabulary))
        other._biased = self._biased[:shared]
        other._bias = self._bias[:shared]
        return other

    def sample(self, logits: Logits, position: int) -> int:
        """Draw one token.

        Args:
            logits: A float32 array [V], which is not modified.
            position: The token's position in the context, for error messages.

        Raises:
            NumericError: If a logit is NaN or +inf, or if all logits are -inf.
            SamplingError: If the logit bias contains an id >= V.
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
            logits: A float32 array [V].

        Returns:
            The ids in ascending order, int64 [n], and their probabilities, float64 [n].
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
            logits: A float32 array [V].

        Yields:
            The name and value of a setting, or `model` and None, followed by ids and
            probabilities as in `distribution`. Tokens are drawn from the last of these
            distributions. A temperature of 0 is always the last step, because it leaves
            only one token.
        """
        for name, value, partial in self._partial_samplers():
            yield name, value, *partial.distribution(logits)

    def changed_logits(
        self, logits: Logits
    ) -> Iterator[tuple[str, float | None, Logits]]:
        """Yield the logits after the bias, and after each active penalty.

        Args:
            logits: A float32 array [V].

        Yields:
            The name and value of a penalty, or `logit_bias` and None, followed by a
            float32 array [V] that the next iteration overwrites.
        """
        for name, value, partial in self._partial_samplers():
            if name == "logit_bias" or (name in STEPS and STEPS[name].is_penalty):
                yield name, value, partial._apply_penalties(logits)

    def _partial_samplers(self) -> Iterator[tuple[str, float | None, "Sampler"]]:
        """Yield the same sampler repeatedly, each time with one more active step."""
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
        """Return the ids and weights of the tokens that can be drawn.

        Returns:
            The ids in ascending order, int64 [n], or None for all tokens, and the weights
            [n]. The largest weight is 1, and tokens with a weight of 0 cannot be drawn.
            Weights are float64, or float32 if n exceeds 4096. The next call may overwrite
            them.
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
        """Return the logits with the bias and all penalties applied."""
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
        # A tiny temperature, or a logit of -inf, results in exp(-inf), which is 0.
        with np.errstate(over="ignore", under="ignore"):
            if logits.size <= MANY:
                few: Floats = (logits.astype(np.float64) - float(largest)) / temperature
                return np.exp(few, out=few)
            if self._weighed.size < logits.size:
                self._weighed = np.empty(logits.size, np.float32)
            weights = self._weighed[: logits.size]
            np.subtract(logits, largest, out=weights)
            # The rate must be finite in float32, because the maximum has the exponent 0,
            # and infinity times 0 is NaN.
            rate = min(max(1.0 / temperature, _SMALLEST_RATE), _LARGEST_RATE)
            np.multiply(weights, np.float32(rate), out=weights)
            return np.exp(weights, out=weights)


def _replace_logits(logits: Logits, ids: Ids, values: Floats) -> None:
    """Replace the logits of some tokens. Finite logits stay finite for any penalty."""
    limit = float(np.finfo(np.float32).max)
    logits[ids] = np.where(
        np.isfinite(logits[ids]), np.clip(values, -limit, limit), logits[ids]
    )


def explain_choice(
    sampler: Sampler, logits: Logits, token_id: int, position: int, count: int
) -> Choice:
    """Explain how a token was chosen.

    This must be called before the sampler observes the token.

    Args:
        sampler: The sampler that drew the token.
        logits: A float32 array [V].
        token_id: The drawn token.
        position: The token's position in the context.
        count: The number of candidates. At least one is always returned.
    """
    near = at_least_kth_largest(logits, min(count, logits.size))
    # Among equal logits, the lowest id comes before the others.
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
    """Return the indices of all values [n] that are at least the kth largest value.

    The indices are in ascending order, and 1 <= k <= n.
    """
    groups = k * _GROUPS_PER_RANK
    length = values.size // groups
    if length < _LEAST_GROUP:
        return np.flatnonzero(
            values >= np.partition(values, values.size - k)[values.size - k]
        )
    # k groups have a maximum >= the kth largest maximum, so at least k values are also >=
    # that maximum. (The remaining values, which do not fill a group, can only increase
    # the kth largest value.)
    maxima = values[: length * groups].reshape(length, groups).max(axis=0)
    near = np.flatnonzero(values >= np.partition(maxima, groups - k)[groups - k])
    kept = values[near]
    chosen: Ids = near[kept >= np.partition(kept, kept.size - k)[kept.size - k]]
    return chosen


def leave_out(
    weights: Weights, smallest: float, count: int
) -> tuple[Ids | None, Weights]:
    """Exclude weights [n] that are less than `smallest`.

    Of the weights that equal `smallest`, only the first `count` are kept. If few weights
    are kept, return their indices in ascending order and the kept weights. Otherwise,
    return None and the modified array, in which excluded weights are 0.
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
    """Find the smallest set of the largest weights that has at least top_p of the total.

    Return the smallest weight in this set, and how many weights in the set are equal to
    it.
    """
    if weights.size > MANY:  # a few weights are usually sufficient
        near = weights.size // _NEAR
        above = weights > 0.0
        # The search is slow if a mask has set many weights to zero.
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
    """Draw an index with a probability proportional to its weight.

    `share` is a random number from [0, 1), and the weights must have a positive sum. More
    than MANY weights are summed in rows of 256, followed by the sum of the rows. `side`
    determines which index is returned if a cumulative sum equals the share exactly, as in
    `numpy.searchsorted`.
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

    Also return how much of the weight at this index, from 0 to 1, is needed to reach it.
    """
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = share * float(cumulative[-1])
    place = int(np.searchsorted(cumulative, target, side))
    if place == weights.size:  # the target was rounded up to the total
        return int(np.flatnonzero(weights)[-1]), 1.0
    before = float(cumulative[place - 1]) if place else 0.0
    return place, min((target - before) / float(weights[place]), 1.0)
