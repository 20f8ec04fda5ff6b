"""Exercise 10.4: what a score depends on."""

import math

from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    del model
    # The angle between two rotated copies of the same pair: distance times frequency.
    return [Case("answer", None, math.cos((1005 - 1003) * 0.5), "the score")]


EXERCISE = PredictIt(
    number="10.4",
    title="Predict a score",
    minutes=5,
    difficulty="easy",
    bound=1e-4,
    task="""\
A query and a key are the same pair, (1, 0). The frequency of the pair is 0.5 radians per
position. The query is at position 1005, the key at position 1003. What is their dot product
after the rotation?

Set `answer` to the number, or to an expression with `math`.
""",
    stub="""\
import math

answer = None
""",
    solution="""\
import math

answer = math.cos((1005 - 1003) * 0.5)
""",
    mistakes=(
        Mistake(
            "The frequency is missing: the angle is the distance times 0.5.",
            ((" * 0.5", ""),),
        ),
        Mistake(
            "The angle of the query alone does not matter: only the distance of the two "
            "positions does.",
            (("(1005 - 1003)", "1005"),),
        ),
        Mistake(
            "Both rotate, so the angles are subtracted, not added.",
            (("1005 - 1003", "1005 + 1003"),),
        ),
        Mistake(
            "A score of 1 would be right without a distance. Here the key is 2 positions "
            "before the query.",
            (("math.cos((1005 - 1003) * 0.5)", "1.0"),),
        ),
        Mistake(
            "The sine of the angle is the other product. A dot product of two vectors of "
            "length 1 is the cosine of the angle between them.",
            (("math.cos", "math.sin"),),
        ),
        Mistake(
            "The angle is in radians: math.cos takes it as it is.",
            (("(1005 - 1003) * 0.5", "math.radians((1005 - 1003) * 0.5)"),),
        ),
    ),
    cases=_cases,
    explanation="""\
The two vectors have length 1, and the angle between them is (1005 - 1003) * 0.5 = 1 radian.
Shift both by 100 positions, and the score stays the same.""",
)
