"""Exercise 13.2: the number of passes of an answer."""

import math

from ...model import PREFILL_CHUNK, Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    del model
    passes = math.ceil(1000 / PREFILL_CHUNK) + 20 - 1
    return [Case("answer", None, passes, "the passes")]


EXERCISE = PredictIt(
    number="13.2",
    title="Count the passes",
    minutes=5,
    difficulty="easy",
    task="""\
A prompt has 1000 tokens. The engine reads it in chunks of at most 512 tokens, one pass each, and
then generates 20 tokens without guessing any. How many passes through the network are run?

Set `answer` to a whole number, or to an expression.
""",
    stub="""\
import math

answer = None
""",
    solution="""\
import math

answer = math.ceil(1000 / 512) + 20 - 1
""",
    mistakes=(
        Mistake(
            "Off by one pass: the last chunk of the prompt already gives the first token.",
            ((" - 1", ""),),
        ),
        Mistake(
            "1000 tokens are two chunks: 512 and 488.",
            (("math.ceil(1000 / 512)", "1"),),
        ),
        Mistake(
            "The prompt is read many tokens at a time, not one token per pass.",
            (("math.ceil(1000 / 512)", "1000"),),
        ),
        Mistake(
            "The passes of the prompt are missing.",
            (("math.ceil(1000 / 512) + 20 - 1", "20 - 1"),),
        ),
    ),
    cases=_cases,
    explanation="""\
Two passes read the prompt, and the second of them gives the first token. Each of the other 19
tokens takes a pass.""",
)
