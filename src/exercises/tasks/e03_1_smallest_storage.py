"""Exercise 3.1: the storage that a description of a tensor needs."""

from ... import ml
from ...model import Model
from ..exercise import Case, Mistake, PredictIt

_SHAPE = (3, 4)
_STRIDES = (8, 1)
_OFFSET = 100


def _is_enough(count: int) -> bool:
    """Return whether the engine accepts the tensor in a storage of `count` elements."""
    size = ml.bfloat16.itemsize
    strides = [stride * size for stride in _STRIDES]
    try:
        ml.Tensor.from_buffer(
            bytes(count * size), ml.bfloat16, _SHAPE, strides, _OFFSET * size
        )
    except ml.TensorError:
        return False
    return True


def _cases(model: Model) -> list[Case]:
    del model
    count = 0
    while not _is_enough(count):
        count += 1
    return [Case("answer", None, count, "the elements of the storage")]


EXERCISE = PredictIt(
    number="3.1",
    title="Find the smallest storage",
    minutes=5,
    difficulty="medium",
    task="""\
A file describes a tensor by the offset 100, the shape (3, 4) and the strides (8, 1), all counted in
elements. How many elements does its storage have at least?

Set `answer` to a whole number, or to an expression.
""",
    stub="""\
offset, shape, strides = 100, (3, 4), (8, 1)

answer = None
""",
    solution="""\
offset, shape, strides = 100, (3, 4), (8, 1)

last = offset + (shape[0] - 1) * strides[0] + (shape[1] - 1) * strides[1]
answer = last + 1
""",
    mistakes=(
        Mistake(
            "Off by one element: this is the index of the last element, and indices begin at 0.",
            (("last + 1", "last"),),
        ),
        Mistake(
            "The rows are not adjacent: a row begins 8 elements after the one before.",
            (("last + 1", "offset + shape[0] * shape[1]"),),
        ),
        Mistake(
            "The last row ends with its fourth element. Nothing has to follow it.",
            (("last + 1", "offset + shape[0] * strides[0]"),),
        ),
        Mistake(
            "The offset is missing: the first element is element 100 of the storage.",
            (("last = offset + ", "last = "),),
        ),
    ),
    cases=_cases,
    explanation="""\
The last element, [2, 3], is element 100 + 2 * 8 + 3 * 1 = 119 of the storage. A file whose storage
is smaller is rejected before a number is read. The tensor is a view of four columns of a matrix
with eight.""",
)
