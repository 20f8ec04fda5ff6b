"""Exercise 7.2: broadcasting."""

from ... import ml
from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    del model
    total = ml.add(ml.zeros(6, 1, 5), ml.zeros(4, 1))
    return [Case("answer", None, list(total.shape), "the shape")]


EXERCISE = PredictIt(
    number="7.2",
    title="Broadcast two shapes",
    minutes=5,
    difficulty="easy",
    task="""\
A tensor of shape `[6, 1, 5]` and one of shape `[4, 1]` are added. What is the shape of the sum?

Set `answer` to a list.
""",
    stub="""\
answer = None
""",
    solution="""\
answer = [6, 4, 5]
""",
    mistakes=(
        Mistake(
            "Wrong axis: shapes are aligned at their last dimensions, so [4, 1] counts as "
            "[1, 4, 1].",
            (("[6, 4, 5]", "[6, 1, 5]"),),
        ),
        Mistake(
            "The missing dimension is added in front, not at the end.",
            (("[6, 4, 5]", "[4, 1, 5]"),),
        ),
        Mistake(
            "A dimension of 1 is repeated for the other operand's size; the result has the "
            "larger one.",
            (("[6, 4, 5]", "[6, 4, 1]"),),
        ),
        Mistake(
            "The result has as many dimensions as the longer shape: three.",
            (("[6, 4, 5]", "[4, 5]"),),
        ),
    ),
    cases=_cases,
    explanation="""\
[6, 1, 5] and [1, 4, 1]: in each dimension the sizes are equal, or one of them is 1.""",
)
