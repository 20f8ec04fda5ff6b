"""Exercise 16.1: nucleus sampling."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ...inference import SamplingArgs, sampling
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt

_PROBABILITIES = np.array([0.05, 0.3, 0.1, 0.4, 0.15])


def _kept(weights: Any, smallest: float, ties: int) -> Any:
    """Return the indices of the weights that the engine keeps, in ascending order."""
    above = np.flatnonzero(weights > smallest)
    equal = np.flatnonzero(weights == smallest)[:ties]
    return np.union1d(above, equal)


def _cases(model: Model) -> list[Case]:
    del model
    cases = []
    for p in (0.8, 0.5, 0.3):
        kept = _kept(_PROBABILITIES, *sampling.smallest_of_top_p(_PROBABILITIES, p))
        label = f"the probabilities are {_PROBABILITIES.tolist()}"
        cases.append(Case("top_p", (_PROBABILITIES, p), kept, label))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = sampling.smallest_of_top_p

    def smallest_of_top_p(weights: Any, top_p: float) -> tuple[float, int]:
        probabilities = weights / weights.sum()
        kept = _kept(weights, *engine(weights.copy(), top_p))
        chosen = np.asarray(call((probabilities, top_p), kept))
        smallest = float(weights[chosen].min())
        return smallest, int(np.count_nonzero(weights[chosen] == smallest))

    return replaced(sampling, "smallest_of_top_p", smallest_of_top_p)


EXERCISE = WriteIt(
    number="16.1",
    title="Keep the nucleus",
    minutes=15,
    difficulty="medium",
    function="top_p",
    question="Tell me a story.",
    sampling=SamplingArgs(temperature=1.0, top_k=0, top_p=0.8, seed=7),
    task="""\
Top-p sampling keeps the smallest set of the most probable tokens whose probabilities sum to
at least p. The token that reaches p is in the set.

- `probabilities`: float64 `[V]`, which sum to 1. They are not sorted.
- `p`: from 0 to 1.

Return the ids of the kept tokens in ascending order, as an array or a list. It must be equal
to the engine's. The chat draws with temperature 1, top-p 0.8 and a fixed seed.
""",
    stub='''\
import numpy as np


def top_p(probabilities, p):
    """Return the ids of the most probable tokens, which together have at least p."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def top_p(probabilities, p):
    """Return the ids of the most probable tokens, which together have at least p."""
    order = np.argsort(-probabilities, kind="stable")
    sums = np.cumsum(probabilities[order])
    count = np.searchsorted(sums, p) + 1  # the token that reaches p is kept
    return np.sort(order[:count])
''',
    mistakes=(
        Mistake(
            "Off by one token: the token that reaches p is kept too.",
            (("np.searchsorted(sums, p) + 1", "np.searchsorted(sums, p)"),),
        ),
        Mistake(
            "Off by one token: one token more than needed is kept.",
            (("np.searchsorted(sums, p) + 1", "np.searchsorted(sums, p) + 2"),),
        ),
        Mistake(
            "The order is ascending, so the least probable tokens are kept.",
            (("np.argsort(-probabilities", "np.argsort(probabilities"),),
        ),
        Mistake(
            "The ids are in the order of their probabilities. Sort them.",
            (("np.sort(order[:count])", "order[:count]"),),
        ),
        Mistake(
            "These are places in the sorted order, not ids of tokens: look them up in the "
            "order.",
            (("np.sort(order[:count])", "np.arange(count)"),),
        ),
        Mistake(
            "This keeps all tokens with a probability of at least p. Top-p looks at the sum.",
            (
                (
                    "np.sort(order[:count])",
                    "np.flatnonzero(probabilities >= p)",
                ),
            ),
        ),
        Mistake(
            "The probabilities are summed in the order of the ids. Sort them first.",
            (
                (
                    "sums = np.cumsum(probabilities[order])",
                    "sums = np.cumsum(probabilities)",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
