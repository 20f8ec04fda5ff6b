"""Exercise 14.5: a Llama that sees the future."""

from contextlib import AbstractContextManager

import numpy as np

from ... import ml
from ...model import Model, llama
from ..chat import replaced
from ..exercise import BreakIt, Call, Case, Mistake
from ..network import outcome_by


def _cases(model: Model) -> list[Case]:
    del model
    sizes = ((4, 0), (3, 5))
    return [
        Case("causal_mask", (T, start), np.zeros((T, start + T), np.float32), "")
        for T, start in sizes
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = llama.causal_mask

    def causal_mask(T: int, start_pos: int) -> ml.Tensor | None:
        if engine(T, start_pos) is None:
            return None
        return ml.tensor(call((T, start_pos), None), "float32")

    return replaced(llama, "causal_mask", causal_mask)


EXERCISE = BreakIt(
    number="14.5",
    title="Let tokens see the future",
    minutes=5,
    difficulty="easy",
    function="causal_mask",
    question="What is 12 + 30?",
    task="""\
Return a mask of zeros, so that each token of the prompt attends to all tokens, later ones
included. Predict what the model answers to "What is 12 + 30?":

- `a`: the same text. The last token sees all tokens anyway, and only its logits are used.
- `b`: an equation that is wrong.
- `c`: something that is not an equation.

Set `prediction` to a letter before you run it.
""",
    stub='''\
import numpy as np

prediction = None  # "a", "b" or "c"


def causal_mask(T, start):
    """Return zeros: float32 [T, start + T]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np

prediction = "b"


def causal_mask(T, start):
    """Return zeros: float32 [T, start + T]."""
    return np.zeros((T, start + T), np.float32)
''',
    mistakes=(
        Mistake(
            "The last token sees all tokens, but what it sees has changed: the keys and values "
            "of the others were computed in layers in which they saw the future.",
            (('"b"', '"a"'),),
        ),
        Mistake(
            "The model still recognizes the question and its form. Only the first layer's keys "
            "and values are as in training, and the later ones are near enough.",
            (('"b"', '"c"'),),
        ),
        Mistake(
            "A mask of ones adds 1 to each score, which changes no weight: the result is the "
            "same, but return zeros.",
            (("np.zeros", "np.ones"),),
        ),
        Mistake(
            "The cached positions are missing: the mask has start + T columns.",
            (("(T, start + T), np", "(T, T), np"),),
        ),
        Mistake(
            "This is the mask of the engine. Break it: return zeros.",
            (
                (
                    "np.zeros((T, start + T), np.float32)",
                    "np.triu(np.full((T, start + T), -np.inf, np.float32), start + 1)",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
    outcome=outcome_by("="),
    explanation="""\
The capital of Ohio survives without a mask, a sum does not: try the question of your choice with
your function. The mask is not only for training.""",
)
