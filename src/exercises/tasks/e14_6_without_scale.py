"""Exercise 14.6: scores without their divisor."""

from contextlib import AbstractContextManager
from typing import Any

from ... import ml
from ...model import Model
from ..chat import ChatRun, replaced
from ..exercise import BreakIt, Call, Case, Mistake
from ..tensors import floats, random_floats, tensor_of


def _cases(model: Model) -> list[Case]:
    del model
    scores = random_floats(33, 2, 3, 3)
    return [Case("scaled", (scores, 32), scores, "")]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = ml.multiply

    def multiply(a: Any, b: Any) -> ml.Tensor:
        if isinstance(b, ml.Tensor):
            return engine(a, b)
        return tensor_of(call((floats(a), round(b**-2)), None), a.dtype)

    return replaced(ml, "multiply", multiply)


def _outcome(plain: ChatRun, broken: ChatRun) -> str:
    if plain.answer != broken.answer:
        return "c"
    return "a" if plain.has_bits_of(broken) else "b"


EXERCISE = BreakIt(
    number="14.6",
    title="Forget the scale",
    minutes=5,
    difficulty="medium",
    function="scaled",
    task="""\
Stage 13 divides the scores by `sqrt(h)`. Forget it: return the scores as they are. Predict what
happens to the answer to "What is the capital of Ohio?" and to the logits:

- `a`: the same text with the same logits, because the softmax divides by the sum anyway.
- `b`: the same text, but other logits.
- `c`: another text.

Set `prediction` to a letter before you run it.
""",
    stub='''\
import numpy as np

prediction = None  # "a", "b" or "c"


def scaled(scores, h):
    """Return the scores [H, T, S] without dividing them by sqrt(h)."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np

prediction = "b"


def scaled(scores, h):
    """Return the scores [H, T, S] without dividing them by sqrt(h)."""
    return scores
''',
    mistakes=(
        Mistake(
            "The softmax undoes a number that is added to all scores, not a factor. With scores "
            "5.7 times as large, nearly all weight goes to the largest one.",
            (('"b"', '"a"'),),
        ),
        Mistake(
            "Heads that looked at one token still look at it, only more so. That is enough for "
            "this answer, but not for every one.",
            (('"b"', '"c"'),),
        ),
        Mistake(
            "This is what the engine does. Break it: return the scores as they are.",
            (("return scores", "return scores / np.sqrt(h)"),),
        ),
        Mistake(
            "This divides by h, which makes the weights more equal. Return the scores as they "
            "are.",
            (("return scores", "return scores / h"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
    outcome=_outcome,
    explanation="""\
The text is right, and the implementation is wrong. A forgotten scale is found by comparing
logits, or by a text that is long enough.""",
)
