"""Exercise 16.4: top-k."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ...inference import SamplingArgs, sampling
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt

_LOGITS = np.array([0.5, 3.0, -1.0, 2.0, 2.0, 0.1], np.float32)
_OTHER_LOGITS = np.array([5.0, 1.0, 4.0, 2.0], np.float32)


def _cases(model: Model) -> list[Case]:
    del model
    cases = []
    for logits, k in ((_LOGITS, 1), (_OTHER_LOGITS, 3), (_LOGITS, 4), (_LOGITS, 2)):
        kept = sampling.at_least_kth_largest(logits, k)
        cases.append(
            Case("top_k", (logits, k), kept, f"the logits are {logits.tolist()}")
        )
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = sampling.at_least_kth_largest

    def at_least_kth_largest(values: Any, k: int) -> Any:
        return np.asarray(call((values.copy(), k), engine(values, k)), np.int64)

    return replaced(sampling, "at_least_kth_largest", at_least_kth_largest)


EXERCISE = WriteIt(
    number="16.4",
    title="Keep the k largest",
    minutes=10,
    difficulty="easy",
    function="top_k",
    question="Tell me a story.",
    sampling=SamplingArgs(temperature=1.0, top_k=20, top_p=1.0, seed=5),
    task="""\
Top-k sampling keeps the k largest logits, and any others that equal the smallest of them.

- `logits`: float32 `[V]`.
- `k`: from 1 to V.

Return the ids of the kept tokens in ascending order, as an array or a list. It must be equal to
the engine's.
""",
    stub='''\
import numpy as np


def top_k(logits, k):
    """Return the ids of the logits that are at least the kth largest."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def top_k(logits, k):
    """Return the ids of the logits that are at least the kth largest."""
    smallest = np.sort(logits)[-k]
    return np.flatnonzero(logits >= smallest)
''',
    mistakes=(
        Mistake(
            "The kth largest itself is missing: compare with >=, not with >.",
            (("logits >= smallest", "logits > smallest"),),
        ),
        Mistake(
            "Off by one token: this keeps the k + 1 largest.",
            (("np.sort(logits)[-k]", "np.sort(logits)[max(-k - 1, -len(logits))]"),),
        ),
        Mistake(
            "Others that equal the kth largest logit are missing: they are kept too.",
            (
                (
                    "np.flatnonzero(logits >= smallest)",
                    "np.sort(np.argsort(-logits, kind='stable')[:k])",
                ),
            ),
        ),
        Mistake(
            "These are the k smallest logits.",
            (
                ("np.sort(logits)[-k]", "np.sort(logits)[k - 1]"),
                ("logits >= smallest", "logits <= smallest"),
            ),
        ),
        Mistake(
            "These are the logits. Return the ids.",
            (("np.flatnonzero(logits >= smallest)", "logits[logits >= smallest]"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
