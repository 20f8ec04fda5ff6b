"""Exercise 7.1: strides."""

from ... import ml
from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    del model
    x = ml.zeros(3, 4, 5)
    strides = list(x.transpose(0, 2).strides)
    return [Case("answer", None, strides, "the strides")]


EXERCISE = PredictIt(
    number="7.1",
    title="Transpose without moving anything",
    minutes=5,
    difficulty="easy",
    task="""\
`x` is a contiguous float32 tensor of shape `[3, 4, 5]`. `x.transpose(0, 2)` is a view of the same
memory with shape `[5, 4, 3]`. What are its strides, in bytes?

Set `answer` to a list of three whole numbers.
""",
    stub="""\
answer = None
""",
    solution="""\
itemsize = 4
strides = [4 * 5 * itemsize, 5 * itemsize, itemsize]  # of x

answer = [strides[2], strides[1], strides[0]]
""",
    mistakes=(
        Mistake(
            "These are the strides of x. The transpose exchanges the first and the last.",
            (("[strides[2], strides[1], strides[0]]", "strides"),),
        ),
        Mistake(
            "These strides count elements, as PyTorch's do. The engine's count bytes, and a "
            "float32 has 4.",
            (("itemsize = 4", "itemsize = 1"),),
        ),
        Mistake(
            "These are the strides of a contiguous copy of shape [5, 4, 3]. A transpose moves "
            "no element.",
            (("[strides[2], strides[1], strides[0]]", "[48, 12, 4]"),),
        ),
        Mistake(
            "Wrong axes: transpose(0, 2) exchanges dimensions 0 and 2, and dimension 1 keeps "
            "its stride.",
            (
                (
                    "[strides[2], strides[1], strides[0]]",
                    "[strides[1], strides[0], strides[2]]",
                ),
            ),
        ),
    ),
    cases=_cases,
    explanation="""\
A step along the first dimension of the view is a step along the last one of x: 4 bytes.""",
)
