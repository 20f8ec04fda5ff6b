"""Exercise 6.3: a sum in bfloat16."""

from ... import ml
from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    del model
    one = ml.ones((1,), dtype=ml.bfloat16)
    total = ml.zeros((1,), dtype=ml.bfloat16)
    for _count in range(1000):
        total = ml.add(total, one)
    return [Case("answer", None, int(float(total.to(ml.float32)[0])), "the sum")]


EXERCISE = PredictIt(
    number="6.3",
    title="Add a thousand ones",
    minutes=5,
    difficulty="medium",
    task="""\
A bfloat16 total starts at 0. Add 1 to it a thousand times, and round the total to bfloat16 after
each addition (ties to even). What is the total at the end?

Set `answer` to a whole number.
""",
    stub="""\
answer = None
""",
    solution="""\
answer = 256
""",
    mistakes=(
        Mistake(
            "This is the exact sum. From some total on, adding 1 changes nothing, because the "
            "result is rounded to the total again.",
            (("256", "1000"),),
        ),
        Mistake(
            "257 is not a bfloat16: 256 + 1 is halfway between 256 and 258, and a tie goes to "
            "the even fraction, which is 256.",
            (("256", "257"),),
        ),
        Mistake(
            "Off by one bit: 128 + 1 = 129 is still a bfloat16, because 8 bits are significant.",
            (("256", "128"),),
        ),
        Mistake(
            "The tie does not go up: the fraction of 256 ends in 0, and the one of 258 in 1.",
            (("256", "512"),),
        ),
    ),
    cases=_cases,
    explanation="""\
At 256 the distance to the next bfloat16 is 2. 257 is a tie, which goes back to 256, each time. So
every product of the engine is summed in float32 and rounded once.""",
)
