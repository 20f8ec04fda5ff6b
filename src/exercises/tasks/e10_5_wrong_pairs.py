"""Exercise 10.5: the wrong pairs."""

import numpy as np

from ... import ml
from ...model import Model
from ..exercise import BreakIt, Case, Mistake
from ..network import outcome_by, rotated_by
from ..tensors import floats, random_floats


def _cases(model: Model) -> list[Case]:
    del model
    x = random_floats(17, 3, 2, 8)
    angles = np.outer(np.arange(3), [1.0, 0.5, 0.1, 0.02])
    table = np.exp(1j * angles).astype(np.complex64)
    wide = ml.tensor(x, "float32")
    rotated = floats(ml.rotary_embedding(wide, ml.Tensor.from_numpy(table), "halves"))
    halves = np.concatenate([rotated[..., 0::2], rotated[..., 1::2]], axis=-1)
    return [Case("rotate", (x, table), halves, "")]


EXERCISE = BreakIt(
    number="10.5",
    title="Rotate the wrong pairs",
    minutes=10,
    difficulty="medium",
    function="rotate",
    bound=1e-5,
    task="""\
Write the rotation of Hugging Face's code, whose pairs are halves: element `i` of a head is the
real part and element `i + h/2` the imaginary part, before and after the rotation. The bundled
model was trained with neighbours as pairs. Predict what it answers to "What is the capital of
Ohio?":

- `a`: the same text. Queries and keys are changed in the same way, so the scores stay equal.
- `b`: it still finds Columbus, but not in a good sentence.
- `c`: something else.

Set `prediction` to a letter before you run it.
""",
    stub='''\
import numpy as np

prediction = None  # "a", "b" or "c"


def rotate(x, table):
    """Return x [T, heads, h], rotated by table [T, h/2], with halves as pairs."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np

prediction = "c"


def rotate(x, table):
    """Return x [T, heads, h], rotated by table [T, h/2], with halves as pairs."""
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * table[:, None, :]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)
''',
    mistakes=(
        Mistake(
            "Scores would stay equal if the weights were reordered too, as in Hugging Face's "
            "files. Here a fast rotation meets numbers that were trained for a slow one.",
            (('"c"', '"a"'),),
        ),
        Mistake(
            "The model finds less than without any rotation: wrong angles tell it that tokens "
            "are where they are not.",
            (('"c"', '"b"'),),
        ),
        Mistake(
            "Wrong pair order for this exercise: these are neighbours, which is right for the "
            "model. Break it: pair x[i] with x[i + h/2].",
            (
                (
                    "x[..., :half] + 1j * x[..., half:]",
                    "x[..., 0::2] + 1j * x[..., 1::2]",
                ),
                (
                    "np.concatenate([pairs.real, pairs.imag], axis=-1)",
                    "np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)",
                ),
            ),
        ),
        Mistake(
            "The result has neighbours as pairs. The real parts are its first half, and the "
            "imaginary parts its second half.",
            (
                (
                    "np.concatenate([pairs.real, pairs.imag], axis=-1)",
                    "np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=rotated_by,
    outcome=outcome_by("Columbus"),
    explanation="""\
The program runs without an error, and only the text shows that something is wrong. With short
prompts even the text can survive. To check an implementation, compare logits, not answers.""",
)
