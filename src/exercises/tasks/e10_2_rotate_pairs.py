"""Exercise 10.2: rotate queries and keys."""

import numpy as np

from ... import ml
from ...model import Model
from ...model.rope import rotary_table
from ..exercise import Case, Mistake, WriteIt
from ..network import rotated_by
from ..tensors import floats, random_floats, tensor_of


def _cases(model: Model) -> list[Case]:
    x = random_floats(5, 3, 2, 8)
    angles = np.outer(np.arange(4, 7), [1.0, 0.5, 0.1, 0.02])
    table = np.exp(1j * angles).astype(np.complex64)
    expected = ml.rotary_embedding(tensor_of(x, ml.float32), ml.Tensor.from_numpy(table))
    head = random_floats(6, 5, 1, model.args.head_dim)
    real = rotary_table(model.args, 5)
    rotated = ml.rotary_embedding(tensor_of(head, ml.float32), real)
    return [
        Case("rotate", (x, table), floats(expected), "positions 4 to 6"),
        Case("rotate", (head, real.numpy()), floats(rotated), "positions 0 to 4"),
    ]


EXERCISE = WriteIt(
    number="10.2",
    title="Rotate queries and keys",
    minutes=15,
    difficulty="medium",
    function="rotate",
    bound=1e-6,
    task="""\
Rotate each pair of neighbours in each head by the angle of its token's position:

`(x[2i] + 1j * x[2i + 1]) * table[t, i]`

- `x`: float32 `[T, heads, h]`, queries or keys.
- `table`: complex64 `[T, h/2]`, `cos + 1j * sin` for each new position and each pair.

All heads of a token rotate by the same angles. Return float32 `[T, heads, h]`, in which
element `2i` is the real part and element `2i + 1` the imaginary part. Each element may
differ from the engine's by 0.000001 of the largest element.
""",
    stub='''\
import numpy as np


def rotate(x, table):
    """Return x [T, heads, h], rotated by table [T, h/2]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def rotate(x, table):
    """Return x [T, heads, h], rotated by table [T, h/2]."""
    table = table[:, None, :]  # [T, h/2] -> [T, 1, h/2]
    pairs = x[..., 0::2] + 1j * x[..., 1::2]  # [T, heads, h/2]
    turned = pairs * table
    out = np.empty_like(x)
    out[..., 0::2] = turned.real
    out[..., 1::2] = turned.imag
    return out
''',
    mistakes=(
        Mistake(
            "Wrong pair order: your pairs are halves, (x[i], x[i + h/2]), as in Hugging "
            "Face's code. Meta's weights pair neighbours, (x[2i], x[2i + 1]).",
            (
                (
                    "x[..., 0::2] + 1j * x[..., 1::2]",
                    "x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]",
                ),
                ("out[..., 0::2]", "out[..., : x.shape[-1] // 2]"),
                ("out[..., 1::2]", "out[..., x.shape[-1] // 2 :]"),
            ),
        ),
        Mistake(
            "Wrong pair order: the pairs are neighbours, but the result has all real parts "
            "first and then all imaginary parts. They are neighbours in the result too.",
            (
                ("out[..., 0::2]", "out[..., : x.shape[-1] // 2]"),
                ("out[..., 1::2]", "out[..., x.shape[-1] // 2 :]"),
            ),
        ),
        Mistake(
            "The rotation runs backwards: the sine has the wrong sign.",
            (("pairs * table", "pairs * table.conj()"),),
        ),
        Mistake(
            "The two numbers of each pair are exchanged: x[2i] is the real part.",
            (("x[..., 0::2] + 1j * x[..., 1::2]", "x[..., 1::2] + 1j * x[..., 0::2]"),),
        ),
        Mistake(
            "Off by one position: each row is rotated by the angles of the row before it.",
            (("table[:, None, :]", "np.roll(table, 1, axis=0)[:, None, :]"),),
        ),
        Mistake(
            "All rows are rotated by the angles of the first position.",
            (("table[:, None, :]", "table[:1, None, :]"),),
        ),
        Mistake(
            "The table needs an axis for the heads: table[:, None, :] has the shape "
            "[T, 1, h/2].",
            (("table[:, None, :]", "table"),),
        ),
    ),
    cases=_cases,
    in_chat=rotated_by,
)
