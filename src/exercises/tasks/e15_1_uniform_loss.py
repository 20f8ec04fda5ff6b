"""Exercise 15.1: the loss of a model that knows nothing."""

from ... import ml
from ...model import Model
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    logits = ml.zeros(1, model.args.vocab_size)
    loss = ml.cross_entropy(logits, ml.tensor([7], "int32"))
    return [Case("answer", None, float(loss.numpy()), "the loss")]


EXERCISE = PredictIt(
    number="15.1",
    title="Know nothing",
    minutes=5,
    difficulty="easy",
    bound=1e-4,
    task="""\
A model gives the same logit to all V = 4096 tokens. What is its loss, the mean of
`-ln(probability of the token that follows)`?

Set `answer` to a number, or to an expression with `math`.
""",
    stub="""\
import math

answer = None
""",
    solution="""\
import math

answer = math.log(4096)
""",
    mistakes=(
        Mistake(
            "This is the logarithm to base 2, the loss in bits. The loss uses the natural "
            "logarithm.",
            (("math.log(4096)", "math.log2(4096)"),),
        ),
        Mistake(
            "This is the perplexity. The loss is its logarithm.",
            (("math.log(4096)", "4096.0"),),
        ),
        Mistake(
            "This is the probability of each token. The loss is -ln of it.",
            (("math.log(4096)", "1 / 4096"),),
        ),
        Mistake(
            "The sign is wrong: a probability below 1 has a negative logarithm, and the loss "
            "has a minus in front of it.",
            (("math.log(4096)", "math.log(1 / 4096)"),),
        ),
    ),
    cases=_cases,
    explanation="""\
Each token has the probability 1 / 4096, and -ln(1 / 4096) = ln(4096) = 8.32. Training starts
there. The perplexity, e to the loss, is 4096: as if the model drew from all tokens.""",
)
