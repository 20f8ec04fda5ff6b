"""Exercise 6.2: the first whole number that bfloat16 lacks."""

from ... import ml
from ...model import Model
from ..exercise import Case, Mistake, PredictIt
from ..tensors import floats


def _cases(model: Model) -> list[Case]:
    del model
    numbers = ml.arange(1, 1000, dtype=ml.float32)
    rounded = floats(numbers.to(ml.bfloat16))
    gaps = [int(x) for x, y in zip(floats(numbers), rounded, strict=True) if x != y]
    return [Case("answer", None, gaps[0], "the number")]


EXERCISE = PredictIt(
    number="6.2",
    title="Find the first gap",
    minutes=5,
    difficulty="easy",
    task="""\
A bfloat16 has 1 bit for the sign, 8 for the exponent and 7 for the fraction. In front of the
fraction is a 1 that is not stored. Which is the smallest positive whole number that is not a
bfloat16?

Set `answer` to a whole number, or to an expression.
""",
    stub="""\
fraction_bits = 7

answer = None
""",
    solution="""\
fraction_bits = 7

answer = 2 ** (fraction_bits + 1) + 1
""",
    mistakes=(
        Mistake(
            "The 1 in front of the fraction counts as a bit: 8 bits are significant.",
            (("(fraction_bits + 1)", "fraction_bits"),),
        ),
        Mistake(
            "Off by one: this power of 2 is exact. The number after it is the first one that "
            "needs a bit more.",
            ((" + 1\n", "\n"),),
        ),
        Mistake(
            "This is the gap of float16, whose fraction has 10 bits.",
            (("(fraction_bits + 1)", "(10 + 1)"),),
        ),
        Mistake(
            "The bits of the exponent do not add precision, only range.",
            (("(fraction_bits + 1)", "(fraction_bits + 8 + 1)"),),
        ),
    ),
    cases=_cases,
    explanation="""\
257 needs 9 significant bits: 100000001. It is rounded to 256. So positions, ids and counts are
never stored in bfloat16.""",
)
