"""Choosing the next token from the logits.

The steps, in the order of Hugging Face's generation: repetition penalty, temperature, top-k, top-p,
min-p, then one draw. Each step sees only what the one before it kept. With temperature 0 the token
with the largest (penalised) logit is taken, the lowest id among equals, and nothing is drawn.
"""

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import NumericError, SamplingError

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]

# How many of the largest probabilities top-p looks at first; nearly always enough.
_FIRST_GUESS = 256


@dataclass(frozen=True)
class SamplingArgs:
    """How the next token is chosen.

    Args:
        temperature: Divides the logits, >= 0; 0 takes the largest.
        top_k: Keeps the k largest logits (and equals of the smallest of them); 0 keeps all.
        top_p: Keeps the fewest tokens whose probabilities add up to at least top_p, 0 to 1;
            1 keeps all, 0 only the most probable.
        min_p: Keeps tokens at least min_p times as probable as the most probable, 0 to 1.
        repeat_penalty: Divides positive and multiplies negative logits of all tokens of the
            prompt and the answer so far, > 0; 1 changes nothing.
        seed: Seed of the random numbers, >= 0; None draws one from the operating system.

    Raises:
        SamplingError: A value is outside of its range.

    Source: Keskar et al., CTRL, 2019 (repetition penalty); Fan et al., 2018 (top-k); Holtzman et
        al., 2019 (top-p); Nguyen et al., 2024 (min-p).
    """

    temperature: float = 0.6
    top_k: int = 50
    top_p: float = 0.9
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_whole("top_k", self.top_k)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repeat_penalty", self.repeat_penalty, 0.0, math.inf)
        if self.repeat_penalty == 0.0:
            raise SamplingError("[sampling] repeat_penalty must be above 0: got 0")
        if self.seed is not None:
            _check_whole("seed", self.seed)


def _check_number(name: str, value: float, low: float, high: float) -> None:
    """Refuses what is no finite number from low to high."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SamplingError(f"[sampling] {name} must be a number: got {type(value).__name__}")
    if isinstance(value, int) and abs(value).bit_length() > 1000:
        raise SamplingError(f"[sampling] {name} must be finite: got a number beyond float64")
    if not (math.isfinite(value) and low <= value <= high):
        limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise SamplingError(f"[sampling] {name} must be finite and {limits}: got {value}")


def _check_whole(name: str, value: int) -> None:
    """Refuses what is no whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        kind = type(value).__name__
        raise SamplingError(f"[sampling] {name} must be a whole number: got {kind}")
    if value < 0:
        raise SamplingError(f"[sampling] {name} must be at least 0: got {value}")


class Sampler:
    """Draws the tokens of one answer.

    Attributes:
        args: The settings.
        seed: The seed in use; the same seed, settings and logits give the same tokens.
    """

    def __init__(self, args: SamplingArgs) -> None:
        self.args = args
        self.seed = secrets.randbits(32) if args.seed is None else args.seed
        self._random = np.random.default_rng(self.seed)
        self._seen: set[int] = set()

    def observe(self, ids: Iterable[int]) -> None:
        """Adds tokens of the prompt or the answer to those that the penalty applies to."""
        if self.args.repeat_penalty != 1.0:
            self._seen.update(ids)

    def sample(self, logits: Logits, position: int) -> int:
        """Chooses one token.

        Args:
            logits: float32 [V]; left as they are.
            position: Position of the token in the context, named if the logits are no numbers.

        Raises:
            NumericError: A logit is NaN or +inf, or all are -inf.
        """
        if not math.isfinite(logits.max()):
            at = int(np.argmax(logits))  # the first NaN counts as the maximum
            raise NumericError(
                f"[sampling] logits must be finite: got {logits[at]} for token {at} at "
                f"position {position}"
            )
        if self.args.temperature == 0.0:
            return int(np.argmax(self._penalised(logits)))
        ids, probabilities = self.distribution(logits)
        cumulative = np.cumsum(probabilities)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(drawn), ids.size - 1)])

    def distribution(self, logits: Logits) -> tuple[Ids, Floats]:
        """Returns the tokens that can be drawn and their probabilities, which add up to 1.

        The temperature must be above 0.

        Args:
            logits: float32 [V].

        Returns:
            Ids int64 [n] and probabilities float64 [n], in no particular but a fixed order.
        """
        ids, kept = _keep_top_k(self._penalised(logits), self.args.top_k)
        probabilities = _softmax(kept, self.args.temperature)
        if self.args.top_p < 1.0:
            chosen = _top_p(probabilities, self.args.top_p)
            ids, probabilities = ids[chosen], probabilities[chosen]
        if self.args.min_p > 0.0:
            chosen = np.flatnonzero(probabilities >= self.args.min_p * probabilities.max())
            ids, probabilities = ids[chosen], probabilities[chosen]
        return ids, probabilities / probabilities.sum()

    def _penalised(self, logits: Logits) -> Logits:
        """Returns the logits with those of seen tokens pushed down."""
        if not self._seen:
            return logits
        seen = np.fromiter(self._seen, dtype=np.int64, count=len(self._seen))
        logits = logits.copy()
        values = logits[seen].astype(np.float64)
        penalty = self.args.repeat_penalty
        with np.errstate(over="ignore"):
            pushed = np.where(values > 0.0, values / penalty, values * penalty)
        # A penalty near 0 or huge must not turn a finite logit into an infinite one.
        limit = float(np.finfo(np.float32).max)
        logits[seen] = np.where(np.isfinite(values), np.clip(pushed, -limit, limit), values)
        return logits


def _keep_top_k(logits: Logits, k: int) -> tuple[Ids, Logits]:
    """Returns the ids, ascending, and values of the k largest logits; equals of the last stay."""
    if k == 0 or k >= logits.size:
        return np.arange(logits.size), logits
    ids = _at_least_kth_largest(logits, k)
    return ids, logits[ids]


def _at_least_kth_largest(values: npt.NDArray[np.floating], k: int) -> Ids:
    """Returns the indices, ascending, of all values not below the kth largest; no full sort."""
    kth = np.partition(values, values.size - k)[values.size - k]
    return np.flatnonzero(values >= kth)


def _softmax(logits: Logits, temperature: float) -> Floats:
    """Returns exp((logit - max) / temperature), normalised, in float64."""
    shifted = logits.astype(np.float64) - float(logits.max())
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature gives -inf, and exp 0
        weights: Floats = np.exp(shifted / temperature)
    weights /= weights.sum()
    return weights


def _top_p(probabilities: Floats, top_p: float) -> Ids:
    """Returns the indices, most probable first, of the fewest tokens that reach top_p together.

    Only as many of the largest as are needed are sorted.
    """
    count = min(_FIRST_GUESS, probabilities.size)
    while True:
        largest = _at_least_kth_largest(probabilities, count)
        order = largest[np.argsort(-probabilities[largest], kind="stable")]
        cumulative = np.cumsum(probabilities[order])
        if cumulative[-1] >= top_p or order.size == probabilities.size:
            reached = int(np.searchsorted(cumulative, top_p, side="left"))
            return order[: reached + 1]
        count = min(count * 8, probabilities.size)
