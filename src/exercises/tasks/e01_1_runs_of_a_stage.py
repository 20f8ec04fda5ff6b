"""Exercise 1.1: how often a stage of a layer runs in an answer."""

from typing import Any

from ... import ml
from ...model import Model
from ..chat import replaced, run_chat
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    engine = ml.softmax
    runs = 0

    def softmax(x: ml.Tensor, dim: int = -1, **others: Any) -> ml.Tensor:
        """Count the softmaxes of stage 13."""
        nonlocal runs
        runs += 1
        return engine(x, dim=dim, **others)

    with replaced(ml, "softmax", softmax):
        run_chat(model)
    return [Case("answer", None, runs, "the runs of stage 13")]


EXERCISE = PredictIt(
    number="1.1",
    title="Count the runs of a stage",
    minutes=5,
    difficulty="easy",
    task="""\
"What is the capital of Ohio?" becomes a prompt of 22 tokens, which one pass reads. The answer has
9 new tokens, of which the last one ends it. The bundled model has 4 layers with 6 query heads. How
many times does stage 13 run in this answer?

Set `answer` to a whole number, or to an expression.
""",
    stub="""\
prompt, new, layers = 22, 9, 4

answer = None
""",
    solution="""\
prompt, new, layers = 22, 9, 4

passes = 1 + new - 1
answer = passes * layers
""",
    mistakes=(
        Mistake(
            "Off by one pass: the pass over the prompt already gives the first new token.",
            (("1 + new - 1", "1 + new"),),
        ),
        Mistake(
            "Stage 13 belongs to a layer: each pass runs it once for each layer.",
            (("passes * layers", "passes"),),
        ),
        Mistake(
            "One pass reads the whole prompt, not one token of it.",
            (("1 + new - 1", "prompt + new - 1"),),
        ),
        Mistake(
            "All heads of a layer are in one tensor, so the stage runs once for all of them.",
            (("passes * layers", "passes * layers * 6"),),
        ),
        Mistake(
            "The passes over the new tokens run it too.",
            (("1 + new - 1", "1"),),
        ),
    ),
    cases=_cases,
    explanation="""\
One pass reads the prompt and gives the first new token. Each of the other 8 takes a pass, so there
are 9 passes, and each runs the stage in 4 layers.""",
)
