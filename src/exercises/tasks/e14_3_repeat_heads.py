"""Exercise 14.3: repeat key/value heads."""

from contextlib import AbstractContextManager

import numpy as np

from ... import ml
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of


def _cases(model: Model) -> list[Case]:
    del model
    cases = []
    for shape, repeats in (((3, 2, 4), 3), ((2, 5, 2), 2)):
        x = random_floats(30, *shape)
        expected = floats(ml.repeat_heads(ml.tensor(x, "float32"), repeats))
        cases.append(Case("repeat_heads", (x, repeats), expected, ""))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = ml.repeat_heads

    def repeat_heads(x: ml.Tensor, repeats: int) -> ml.Tensor:
        expected = floats(engine(x, repeats))
        return tensor_of(np.asarray(call((floats(x), repeats), expected)), x.dtype)

    return replaced(ml, "repeat_heads", repeat_heads)


EXERCISE = WriteIt(
    number="14.3",
    title="Share keys among query heads",
    minutes=10,
    difficulty="medium",
    function="repeat_heads",
    task="""\
G query heads in a row share a key/value head. Stage 12 repeats each key/value head, so that query
head `n` finds its keys at index `n`:

`out[s, k * G + g] = x[s, k]`, for `g` from 0 to `G - 1`

- `x`: float32 `[S, K, h]`, keys or values.
- `repeats`: G.

Return float32 `[S, K * G, h]`, equal to the engine's.
""",
    stub='''\
import numpy as np


def repeat_heads(x, repeats):
    """Return x [S, K, h] with each head repeated: [S, K * G, h]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def repeat_heads(x, repeats):
    """Return x [S, K, h] with each head repeated: [S, K * G, h]."""
    return np.repeat(x, repeats, axis=1)
''',
    mistakes=(
        Mistake(
            "Wrong order of the heads: 0 1 0 1 0 1 instead of 0 0 0 1 1 1. Query heads in a row "
            "share a head: use repeat, not tile.",
            (("np.repeat(x, repeats, axis=1)", "np.tile(x, (1, repeats, 1))"),),
        ),
        Mistake(
            "Wrong axis: this repeats positions (axis 0). The heads are axis 1.",
            (("axis=1", "axis=0"),),
        ),
        Mistake(
            "Wrong axis: this repeats the elements of a head (axis 2). The heads are axis 1.",
            (("axis=1", "axis=2"),),
        ),
        Mistake(
            "Without an axis, NumPy flattens the array. The heads are axis 1.",
            ((", axis=1", ""),),
        ),
        Mistake(
            "Nothing is repeated.",
            (("np.repeat(x, repeats, axis=1)", "x"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
