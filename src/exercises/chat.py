"""A chat with the bundled model, with the logits of each pass."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ml
from ..inference import InferenceEngine, Message, SamplingArgs
from ..model import Model
from ..model.llama import LlamaTransformer

QUESTION = "What is the capital of Ohio?"
MOST_TOKENS = 40


@dataclass(frozen=True)
class ChatRun:
    """A question, its answer, and the logits [V] of each pass."""

    question: str
    answer: str
    logits: list[npt.NDArray[Any]] = field(repr=False)

    def distance(self, other: "ChatRun") -> float:
        """Return the rms of the difference of the logits after the prompt."""
        return _rms_difference(self.logits[0], other.logits[0])

    def largest_distance(self, other: "ChatRun") -> float:
        """Return the largest rms of the difference of the logits of a pass."""
        pairs = zip(self.logits, other.logits, strict=True)
        return max(_rms_difference(one, two) for one, two in pairs)

    def has_bits_of(self, other: "ChatRun") -> bool:
        """Return whether the logits of all passes are equal, bit for bit."""
        return len(self.logits) == len(other.logits) and all(
            one.tobytes() == two.tobytes()
            for one, two in zip(self.logits, other.logits, strict=True)
        )


def _rms_difference(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> float:
    return math.sqrt(np.mean((one.astype(np.float64) - two) ** 2))


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module or a class until the end of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def run_chat(
    model: Model, question: str = QUESTION, sampling: SamplingArgs | None = None
) -> ChatRun:
    """Ask the model a question, with temperature 0 unless `sampling` says otherwise.

    Attention runs stage by stage, so that each of its ops can be replaced.
    """
    logits: list[npt.NDArray[Any]] = []
    compute: Callable[[Any, ml.Tensor], ml.Tensor] = LlamaTransformer.logits

    def recorded(transformer: LlamaTransformer, x: ml.Tensor) -> ml.Tensor:
        result = compute(transformer, x)
        logits.append(result.numpy()[-1].copy())
        return result

    engine = InferenceEngine(model, 256, speculation=False, attention="eager")
    with replaced(LlamaTransformer, "logits", recorded):
        steps = engine.chat(
            [Message("user", question)],
            max_new_tokens=MOST_TOKENS,
            sampling=sampling or SamplingArgs(temperature=0.0),
        )
        answer = "".join(step.text for step in steps)
    return ChatRun(question, answer, logits)
