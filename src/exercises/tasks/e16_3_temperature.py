"""Exercise 16.3: temperature."""

import numpy as np

from ...inference import Sampler, SamplingArgs
from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    del model
    settings = SamplingArgs(temperature=0.5, top_k=0, top_p=1.0, seed=0)
    logits = np.array([2.0, 1.0], np.float32)
    _, probabilities = Sampler(settings).distribution(logits)
    ratio = float(probabilities[0] / probabilities[1])
    return [Case("answer", None, ratio, "the ratio")]


EXERCISE = PredictIt(
    number="16.3",
    title="Cool the distribution",
    minutes=5,
    difficulty="easy",
    bound=1e-3,
    task="""\
Two tokens have the logits 2 and 1. How many times as probable is the first at temperature 0.5?

Set `answer` to a number, or to an expression with `math`.
""",
    stub="""\
import math

answer = None
""",
    solution="""\
import math

answer = math.exp((2 - 1) / 0.5)
""",
    mistakes=(
        Mistake(
            "This is the ratio at temperature 1. The logits are divided by the temperature.",
            ((" / 0.5", ""),),
        ),
        Mistake(
            "The logits are divided by the temperature, not multiplied by it.",
            ((" / 0.5", " * 0.5"),),
        ),
        Mistake(
            "The logits are not probabilities: the ratio is e to their difference.",
            (("math.exp((2 - 1) / 0.5)", "2 / 1"),),
        ),
        Mistake(
            "The probability is not divided by the temperature, but the logit is.",
            (("math.exp((2 - 1) / 0.5)", "math.exp(2 - 1) / 0.5"),),
        ),
    ),
    cases=_cases,
    explanation="""\
e^(1 / 0.5) = e^2 = 7.4. At temperature 1 it is e = 2.7. A temperature near 0 leaves only the
largest logit.""",
)
