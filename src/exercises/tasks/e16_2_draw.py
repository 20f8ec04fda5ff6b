"""Exercise 16.2: draw a token."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ...inference import SamplingArgs, sampling
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt

_WEIGHTS = np.array([1.0, 0.5, 0.0, 0.25, 0.25])
_OTHER_WEIGHTS = np.array([0.5, 3.0, 0.25])


def _cases(model: Model) -> list[Case]:
    del model
    points = [(_WEIGHTS, x) for x in (0.6, 0.1, 0.5, 0.76, 0.95)]
    points.append((_OTHER_WEIGHTS, 0.1))
    return [
        Case("draw", (weights, x), sampling.draw(weights, x), f"{weights.tolist()}")
        for weights, x in points
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = sampling.draw

    def draw(weights: Any, share: float, side: Any = "right") -> int:
        if side != "right":
            return engine(weights, share, side)
        return int(call((weights.astype(np.float64), share), engine(weights, share)))

    return replaced(sampling, "draw", draw)


EXERCISE = WriteIt(
    number="16.2",
    title="Draw a token",
    minutes=10,
    difficulty="easy",
    function="draw",
    question="Tell me a story.",
    sampling=SamplingArgs(temperature=1.0, top_k=0, top_p=1.0, seed=11),
    task="""\
Put the weights of all tokens side by side, in the order of their ids, on a line from 0 to
their sum. A random number from 0 to 1, times the sum, is a point on the line. The token whose
segment contains the point is drawn. A point on a border belongs to the segment after it.

- `weights`: float64 `[V]`, at least 0. They do not sum to 1.
- `random`: a number from 0 to 1, below 1.

Return the id of the token. A token with weight 0 is never drawn.
""",
    stub='''\
import numpy as np


def draw(weights, random):
    """Return the id of the token whose segment contains the random number."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def draw(weights, random):
    """Return the id of the token whose segment contains the random number."""
    ends = np.cumsum(weights)  # the end of each segment
    return int(np.searchsorted(ends, random * ends[-1], side="right"))
''',
    mistakes=(
        Mistake(
            "The weights do not sum to 1: multiply the random number by their sum.",
            (("random * ends[-1]", "random"),),
        ),
        Mistake(
            "A point on a border belongs to the segment after it: side='right'.",
            ((', side="right"', ""),),
        ),
        Mistake(
            "Off by one token: this is the token before the segment.",
            (
                ("int(np.searchsorted", "max(0, int(np.searchsorted"),
                ('side="right"))', 'side="right")) - 1)'),
            ),
        ),
        Mistake(
            "This is always the most probable token. The random number selects the token.",
            (
                (
                    'int(np.searchsorted(ends, random * ends[-1], side="right"))',
                    "int(np.argmax(weights))",
                ),
            ),
        ),
        Mistake(
            "The segments are sorted by their weights. They are in the order of the ids.",
            (
                ("np.cumsum(weights)", "np.cumsum(np.sort(weights))"),
                (
                    'int(np.searchsorted(ends, random * ends[-1], side="right"))',
                    "int(np.argsort(weights, kind='stable')[np.searchsorted(ends, "
                    "random * ends[-1], side='right')])",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
