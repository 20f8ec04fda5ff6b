"""Exercise 14.2: softmax."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import ml
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of


def _cases(model: Model) -> list[Case]:
    del model
    scores = random_floats(10, 2, 3, 4)
    masked = scores.copy()
    masked[:, 0, 1:] = -np.inf
    large = scores * 100 + 200
    texts = {"": scores, "with -inf": masked, "large scores": large}
    return [
        Case("softmax", (x,), floats(ml.softmax(tensor_of(x, ml.float32))), text)
        for text, x in texts.items()
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = ml.softmax

    def softmax(x: ml.Tensor, dim: int = -1, dtype: Any = None) -> ml.Tensor:
        expected = floats(engine(x, dim, ml.float32))
        return tensor_of(call((floats(x),), expected), dtype or x.dtype)

    return replaced(ml, "softmax", softmax)


EXERCISE = WriteIt(
    number="14.2",
    title="Convert scores to weights",
    minutes=10,
    difficulty="medium",
    function="softmax",
    bound=1e-5,
    task="""\
Convert the scores of each token to weights that sum to 1, along the last axis:

`weight[i] = exp(score[i] - largest) / sum_j exp(score[j] - largest)`

- `scores`: float32 `[H, T, S]`. Scores may be large, and masked scores are minus infinity.

Return float32 `[H, T, S]`. Each weight may differ from the engine's by 0.00001.
""",
    stub='''\
import numpy as np


def softmax(scores):
    """Return the weights of scores [H, T, S], along the last axis."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def softmax(scores):
    """Return the weights of scores [H, T, S], along the last axis."""
    largest = scores.max(axis=-1, keepdims=True)
    exponentials = np.exp(scores - largest)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
''',
    mistakes=(
        Mistake(
            "The sum runs over the wrong axis. Each row of S scores belongs to one token of "
            "one head, so the axis is the last one.",
            (("exponentials.sum(axis=-1", "exponentials.sum(axis=-2"),),
        ),
        Mistake(
            "The sum runs over the heads (axis 0). Each row of S scores sums to 1.",
            (("exponentials.sum(axis=-1", "exponentials.sum(axis=0"),),
        ),
        Mistake(
            "The sum runs over all elements. Each row sums to 1.",
            (
                (
                    "exponentials.sum(axis=-1, keepdims=True)",
                    "exponentials.sum()",
                ),
            ),
        ),
        Mistake(
            "The weights are not divided by their sum.",
            ((" / exponentials.sum(axis=-1, keepdims=True)", ""),),
        ),
        Mistake(
            "The largest score is not subtracted: exp of a score above 88 is infinity in "
            "float32.",
            (("scores - largest", "scores"),),
        ),
        Mistake(
            "The largest score of all rows is subtracted, so that the weights of rows with "
            "much smaller scores become 0 / 0. Subtract the largest score of each row.",
            (("scores.max(axis=-1, keepdims=True)", "scores.max()"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
