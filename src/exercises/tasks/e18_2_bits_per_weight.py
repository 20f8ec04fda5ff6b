"""Exercise 18.2: bits per weight."""

from ... import ml
from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    del model
    weight = ml.quantize(ml.zeros(64, 64), "nf4")
    bits = 8 * weight.nbytes / 64**2
    return [Case("answer", None, bits, "the bits per weight")]


EXERCISE = PredictIt(
    number="18.2",
    title="Count the bits of NF4",
    minutes=5,
    difficulty="easy",
    bound=1e-6,
    task="""\
NF4 stores a code of 4 bits per weight, and a float32 scale for each block of 64 weights. How many
bits does a weight take?

Set `answer` to a number, or to an expression.
""",
    stub="""\
answer = None
""",
    solution="""\
answer = 4 + 32 / 64
""",
    mistakes=(
        Mistake(
            "The scales are missing: a float32 for each 64 weights.",
            ((" + 32 / 64", " + 0"),),
        ),
        Mistake(
            "A float32 has 4 bytes, which are 32 bits.",
            (("32 / 64", "4 / 64"),),
        ),
        Mistake(
            "A block has one scale for 64 weights, not one for each weight.",
            (("32 / 64", "32"),),
        ),
        Mistake(
            "The scale is a float32, not a float16.",
            (("32 / 64", "16 / 64"),),
        ),
    ),
    cases=_cases,
    explanation="""\
4 bits for the code and half a bit for the scale: 4.5 bits. Double quantization stores the scales
in 8 bits as well, which saves 0.37 bits more.""",
)
