"""Exercise 15.2: the log-probability of a token."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import ml
from ...inference import Sampler, SamplingArgs
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats


def _log_probability(logits: Any, token: int) -> float:
    x = ml.tensor(logits[None], "float32")
    return float(floats(ml.log_softmax(x))[0, token])


def _cases(model: Model) -> list[Case]:
    del model
    few = random_floats(40, 5)
    large = random_floats(41, 6) * 10 + 1000
    return [
        Case("log_probability", (few, 2), _log_probability(few, 2), "5 tokens"),
        Case("log_probability", (large, 0), _log_probability(large, 0), "large logits"),
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = Sampler.sample

    def sample(sampler: Sampler, logits: Any, position: int) -> int:
        """Choose the more probable of the two largest logits, as the reader says."""
        engine(sampler, logits, position)
        best = np.argsort(-logits, kind="stable")[:2].tolist()
        values = {
            token: call((logits.copy(), token), _log_probability(logits, token))
            for token in best
        }
        return int(max(best, key=values.__getitem__))

    return replaced(Sampler, "sample", sample)


EXERCISE = WriteIt(
    number="15.2",
    title="Measure a choice",
    minutes=10,
    difficulty="medium",
    function="log_probability",
    bound=1e-4,
    sampling=SamplingArgs(temperature=0.0),
    task="""\
Write the log-probability of a token, the number from which losses and perplexities are made:

`logit - ln(sum_j exp(logit[j]))`

Logits may be as large as 1000, so subtract the largest one first, and add it again.

- `logits`: float32 `[V]`.
- `token`: an id.

Return a number. It may differ from the engine's by 0.0001, or by 0.0001 of it if it is large. In
the chat, the token with the larger log-probability of the two largest logits is chosen.
""",
    stub='''\
import numpy as np


def log_probability(logits, token):
    """Return the natural logarithm of the probability of a token."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def log_probability(logits, token):
    """Return the natural logarithm of the probability of a token."""
    logits = logits.astype(np.float64)
    largest = logits.max()
    log_sum = largest + np.log(np.exp(logits - largest).sum())
    return float(logits[token] - log_sum)
''',
    mistakes=(
        Mistake(
            "This is the probability. Its logarithm is asked for.",
            (
                (
                    "float(logits[token] - log_sum)",
                    "float(np.exp(logits[token] - log_sum))",
                ),
            ),
        ),
        Mistake(
            "The largest logit is subtracted before the sum, and not added again after it.",
            (("largest + np.log", "np.log"),),
        ),
        Mistake(
            "The sign is wrong: this is the loss of the token, minus its log-probability.",
            (("float(logits[token] - log_sum)", "float(log_sum - logits[token])"),),
        ),
        Mistake(
            "The logarithm has base 2.",
            (
                (
                    "float(logits[token] - log_sum)",
                    "float(logits[token] - log_sum) / np.log(2)",
                ),
            ),
        ),
        Mistake(
            "This is the log-probability of the most probable token, not of the given one.",
            (("logits[token]", "logits[logits.argmax()]"),),
        ),
        Mistake(
            "The exponentials overflow for large logits: subtract the largest one first.",
            (("largest = logits.max()", "largest = 0.0"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
