"""Exercise 9.1: RMS norm."""

from contextlib import AbstractContextManager
from typing import Any

from ... import ml
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of


def _cases(model: Model) -> list[Case]:
    x = random_floats(1, 3, 8)
    weight = random_floats(2, 8)
    big = ml.rms_norm(tensor_of(x, ml.float32), tensor_of(weight, ml.float32), 1e-5)
    small_x = x * 1e-3
    small = ml.rms_norm(
        tensor_of(small_x, ml.float32), tensor_of(weight, ml.float32), 1e-5
    )
    table = model.transformer.tok_embeddings
    row = floats(ml.get_rows(table, ml.tensor([100, 101], "int32")))
    norm = model.transformer.layers[0].attention_norm
    real = ml.rms_norm(tensor_of(row, ml.float32), norm.weight, norm.eps)
    return [
        Case("rms_norm", (x, weight, 1e-5), floats(big), ""),
        Case("rms_norm", (small_x, weight, 1e-5), floats(small), "small rows"),
        Case(
            "rms_norm",
            (row, floats(norm.weight), norm.eps),
            floats(real),
            "two embeddings",
        ),
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = ml.rms_norm

    def rms_norm(x: ml.Tensor, weight: ml.Tensor, eps: float, dtype: Any) -> ml.Tensor:
        expected = floats(engine(x, weight, eps, ml.float32))
        return tensor_of(call((floats(x), floats(weight), eps), expected), dtype)

    return replaced(ml, "rms_norm", rms_norm)


EXERCISE = WriteIt(
    number="9.1",
    title="Normalize rows",
    minutes=10,
    difficulty="easy",
    function="rms_norm",
    bound=1e-5,
    task="""\
Write the RMS norm of a Llama: each row is divided by its root mean square, and each column
is multiplied by its weight.

`out = x / sqrt(mean(x * x) + eps) * weight`

- `x`: float32 `[T, D]`, one row per token.
- `weight`: float32 `[D]`.
- `eps`: a small number.

Return float32 `[T, D]`. Each element may differ from the engine's by 0.00001 of the largest
element, because you may sum in another order.
""",
    stub='''\
import numpy as np


def rms_norm(x, weight, eps):
    """Return the normalized rows of x [T, D], multiplied by weight [D]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def rms_norm(x, weight, eps):
    """Return the normalized rows of x [T, D], multiplied by weight [D]."""
    mean = np.mean(x * x, axis=-1, keepdims=True)  # [T, D] -> [T, 1]
    return x / np.sqrt(mean + eps) * weight
''',
    mistakes=(
        Mistake(
            "The mean runs over the wrong axis: over the rows (axis 0). Each token has a "
            "mean of its D elements, so the axis is the last one.",
            (("axis=-1", "axis=0"),),
        ),
        Mistake(
            "The mean runs over all elements. Each row has a separate mean: axis=-1, with "
            "keepdims=True.",
            (("axis=-1, keepdims=True", "keepdims=True"),),
        ),
        Mistake(
            "The sum of the squares is not divided by D: the formula has their mean.",
            (("np.mean", "np.sum"),),
        ),
        Mistake(
            "The square root is missing.",
            (("np.sqrt(mean + eps)", "(mean + eps)"),),
        ),
        Mistake(
            "The weight is missing: the last step multiplies each column by its weight.",
            ((" * weight", ""),),
        ),
        Mistake(
            "The mean of x is subtracted first, as in layer norm. RMS norm does not "
            "subtract it.",
            (("    mean =", "    x = x - x.mean(axis=-1, keepdims=True)\n    mean ="),),
        ),
        Mistake(
            "This divides by the standard deviation. The mean of x is not subtracted.",
            (("x * x,", "(x - x.mean(-1, keepdims=True)) ** 2,"),),
        ),
        Mistake(
            "eps is added after the square root. It belongs inside: sqrt(mean + eps).",
            (("np.sqrt(mean + eps)", "(np.sqrt(mean) + eps)"),),
        ),
        Mistake(
            "eps is missing: it matters for small rows.",
            (("mean + eps", "mean"),),
        ),
        Mistake(
            "The mean has lost its axis, so that it does not broadcast over the columns: "
            "pass keepdims=True.",
            ((", keepdims=True", ""),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
