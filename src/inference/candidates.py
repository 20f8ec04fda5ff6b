"""Which tokens could have been drawn, and what each step of the sampling made of their chances."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .sampling import Floats, Logits, Sampler
from .selection import Ids


@dataclass(frozen=True)
class Stage:
    """One step of the sampling, or the model before all of them.

    Attributes:
        name: `model`, or the setting that makes the step.
        value: of the setting; None for the model.
        kept: how many tokens have a chance after it.
    """

    name: str
    value: float | None
    kept: int


@dataclass(frozen=True)
class Candidate:
    """A token that might come next.

    Attributes:
        token_id: its id.
        log_probability: natural logarithm of its chance by the model, before all steps of the
            sampling: its logit - log(sum(exp(logits))); -inf where the logit is.
        probabilities: its chance after each stage, 0 where it was left out.
    """

    token_id: int
    log_probability: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """How one token was chosen.

    Attributes:
        token_id: the one that was drawn.
        position: its place in the context.
        stages: the model and the steps of the sampling that are on, in their order.
        candidates: the most probable by the model, the most probable first; then the drawn one,
            if it is not among them.
    """

    token_id: int
    position: int
    stages: tuple[Stage, ...]
    candidates: tuple[Candidate, ...]


def explain_choice(
    sampler: Sampler, logits: Logits, token_id: int, position: int, count: int
) -> Choice:
    """Tell how a token was chosen.

    Args:
        sampler: the one that drew it, before it observes it.
        logits: float32 [V], those it drew from.
        token_id: the token.
        position: its place in the context.
        count: how many candidates are told of, at least 1.
    """
    stages: list[Stage] = []
    distributions: list[tuple[Ids, Floats]] = []
    for name, value, ids, probabilities in sampler.stages(logits):
        stages.append(Stage(name, value, ids.size))
        distributions.append((ids, probabilities))
    tokens = _most_probable(logits, count)
    if token_id not in tokens:
        tokens.append(token_id)
    rows = zip(*(_chances(tokens, *found) for found in distributions), strict=True)
    exact: Floats = logits.astype(np.float64)
    largest = float(exact.max())
    log_sum = largest + math.log(np.exp(exact - largest).sum())
    log_probabilities = [float(exact[token]) - log_sum for token in tokens]
    candidates = tuple(map(Candidate, tokens, log_probabilities, rows))
    return Choice(token_id, position, tuple(stages), candidates)


def _most_probable(logits: Logits, count: int) -> list[int]:
    """Return the tokens with the largest logits above -inf, the lowest id first among equals."""
    possible = np.flatnonzero(logits > -np.inf)
    count = min(count, possible.size)
    found = logits[possible]
    near = np.flatnonzero(found >= np.partition(found, found.size - count)[found.size - count])
    order = near[np.argsort(-found[near], kind="stable")][:count]
    return [int(token) for token in possible[order]]


def _chances(tokens: Iterable[int], ids: Ids, probabilities: Floats) -> list[float]:
    """Return the probabilities of some tokens; ids are ascending."""
    places = [int(np.searchsorted(ids, token)) for token in tokens]
    return [
        float(probabilities[place]) if place < ids.size and ids[place] == token else 0.0
        for place, token in zip(places, tokens, strict=True)
    ]
