"""Exercise 10.3: a Llama without rotary embedding."""

from ...model import Model
from ..exercise import BreakIt, Case, Mistake
from ..network import outcome_by, rotated_by
from ..tensors import random_floats


def _cases(model: Model) -> list[Case]:
    del model
    x = random_floats(7, 2, 3, 4)
    table = (random_floats(8, 2, 2) + 0j).astype("complex64")
    return [Case("rotate", (x, table), x, "")]


EXERCISE = BreakIt(
    number="10.3",
    title="A Llama without positions",
    minutes=5,
    difficulty="easy",
    function="rotate",
    task="""\
Switch rotary embedding off: write a `rotate` that returns queries and keys as they are. Then
predict what the model answers to "What is the capital of Ohio?":

- `a`: the same text. The causal mask already tells the model the order of the tokens.
- `b`: it still finds Columbus, but loses its place in the sentence and repeats itself.
- `c`: nothing about Columbus, because no layer finds the word Ohio.

Set `prediction` to a letter before you run it.
""",
    stub='''\
prediction = None  # "a", "b" or "c"


def rotate(x, table):
    """Return x [T, heads, h] without a rotation; the engine passes table [T, h/2]."""
    raise NotImplementedError
''',
    solution='''\
prediction = "b"


def rotate(x, table):
    """Return x [T, heads, h] without a rotation; the engine passes table [T, h/2]."""
    return x
''',
    mistakes=(
        Mistake(
            "The order is not lost entirely, but no score depends on a distance any more. "
            "The heads that look at the token before cannot find it.",
            (('"b"', '"a"'),),
        ),
        Mistake(
            "What a token is does not depend on positions: embeddings and values are never "
            "rotated. A head that looks for a state finds Ohio without knowing where it is.",
            (('"b"', '"c"'),),
        ),
        Mistake(
            "This returns zeros, which removes more than positions: all scores become equal. "
            "Return x itself.",
            (("return x", "return x * 0"),),
        ),
        Mistake(
            "This still rotates. Return x as it is.",
            (
                (
                    "return x",
                    "p = (x[..., 0::2] + 1j * x[..., 1::2]) * table[:, None]\n"
                    "    import numpy as np\n"
                    "    return np.stack([p.real, p.imag], -1).reshape(x.shape)",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=rotated_by,
    outcome=outcome_by("Columbus"),
    explanation="""\
The model still knows which words there are, because the rotation changes neither embeddings
nor values. It does not know where they are: after each word, the same words look equally
near, so it writes the most attractive one again.""",
)
