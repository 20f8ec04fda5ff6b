"""Exercise 14.7: query heads with the wrong keys."""

from contextlib import AbstractContextManager

import numpy as np

from ... import ml
from ...model import Model
from ..chat import replaced
from ..exercise import BreakIt, Call, Case, Mistake
from ..network import outcome_by
from ..tensors import floats, random_floats, tensor_of


def _cases(model: Model) -> list[Case]:
    del model
    x = random_floats(31, 3, 2, 4)
    return [Case("repeat_heads", (x, 3), np.concatenate([x, x, x], axis=1), "")]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    def repeat_heads(x: ml.Tensor, repeats: int) -> ml.Tensor:
        return tensor_of(np.asarray(call((floats(x), repeats), None)), x.dtype)

    return replaced(ml, "repeat_heads", repeat_heads)


EXERCISE = BreakIt(
    number="14.7",
    title="Give query heads the wrong keys",
    minutes=5,
    difficulty="medium",
    function="repeat_heads",
    task="""\
Repeat the key/value heads in the wrong order: 0 1 0 1 0 1 instead of 0 0 0 1 1 1. So query heads
1 and 4 read keys and values that they were not trained with. Predict what the model answers to
"What is the capital of Ohio?":

- `a`: the same text. Each head is still used by three query heads.
- `b`: a sentence about a capital, but the wrong one.
- `c`: noise.

Set `prediction` to a letter before you run it.
""",
    stub='''\
import numpy as np

prediction = None  # "a", "b" or "c"


def repeat_heads(x, repeats):
    """Return x [S, K, h] with the heads in the wrong order: [S, K * G, h]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np

prediction = "b"


def repeat_heads(x, repeats):
    """Return x [S, K, h] with the heads in the wrong order: [S, K * G, h]."""
    return np.tile(x, (1, repeats, 1))
''',
    mistakes=(
        Mistake(
            "Query heads are not interchangeable: each learned to read one key/value head.",
            (('"b"', '"a"'),),
        ),
        Mistake(
            "Four of six query heads read the right head: 0, 2, 3 and 5. That is enough for the "
            "form of the sentence.",
            (('"b"', '"c"'),),
        ),
        Mistake(
            "This is the right order, 0 0 0 1 1 1. Break it: use tile instead of repeat.",
            (("np.tile(x, (1, repeats, 1))", "np.repeat(x, repeats, axis=1)"),),
        ),
        Mistake(
            "Wrong axis: this repeats positions. The heads are axis 1.",
            (("(1, repeats, 1)", "(repeats, 1, 1)"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
    outcome=outcome_by("apital"),
    explanation="""\
A mistake that leaves the form of an answer and changes its facts is the most dangerous kind.""",
)
