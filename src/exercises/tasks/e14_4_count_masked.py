"""Exercise 14.4: count the hidden scores."""

import numpy as np

from ...model import Model, llama
from ..exercise import Case, Mistake, PredictIt
from ..tensors import floats


def _cases(model: Model) -> list[Case]:
    del model
    mask = llama.causal_mask(22, 10)
    assert mask is not None
    count = int(np.isinf(floats(mask)).sum())
    return [Case("answer", None, count, "the hidden scores")]


EXERCISE = PredictIt(
    number="14.4",
    title="Count what is hidden",
    minutes=5,
    difficulty="easy",
    task="""\
A pass has T = 22 new tokens, and 10 positions are cached. How many elements of its mask are minus
infinity?

Set `answer` to a whole number, or to an expression.
""",
    stub="""\
T, start = 22, 10

answer = None
""",
    solution="""\
T, start = 22, 10

answer = T * (T - 1) // 2
""",
    mistakes=(
        Mistake(
            "Off by one position: a token sees itself, so the diagonal is not hidden.",
            (("T * (T - 1) // 2", "T * (T + 1) // 2"),),
        ),
        Mistake(
            "These are the visible ones: all cached positions, and the triangle with the "
            "diagonal.",
            (("T * (T - 1) // 2", "T * start + T * (T + 1) // 2"),),
        ),
        Mistake(
            "The cached positions are earlier, so none of them is hidden.",
            (("T * (T - 1) // 2", "T * start + T * (T - 1) // 2"),),
        ),
        Mistake(
            "This is the square. Only the triangle above the diagonal is hidden.",
            (("T * (T - 1) // 2", "T * (T - 1)"),),
        ),
    ),
    cases=_cases,
    explanation="""\
Row t hides the T - 1 - t tokens after it: 21 + 20 + ... + 0 = 231. The cache adds columns, all
of them visible.""",
)
