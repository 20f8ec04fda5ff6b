"""`--json`: one answer as one line for a program."""

import dataclasses
import json
from collections.abc import Sequence

from ..inference import GenerationStats, InferenceEngine, Step
from .answer import Answer
from .escape import replace_surrogates

_DIGITS = 6  # of a time in seconds


def answer_record(
    engine: InferenceEngine, answer: Answer, steps: Sequence[Step], stats: GenerationStats
) -> str:
    """Return an answer, also an interrupted one, as a JSON object on one line, in ASCII.

    `model`, `text`, `token_ids` (the new tokens, an end token included), `stop_reason`,
    `context_length` and the fields of `GenerationStats`: counts, seconds and the seed.
    """
    record = {
        "model": replace_surrogates(str(engine.model.source_directory)),
        "text": answer.text,
        "token_ids": [step.token_id for step in steps],
        "stop_reason": answer.stop_reason,
        "context_length": engine.sequence_length,
        **dataclasses.asdict(stats),
    }
    return json.dumps(
        {name: round(v, _DIGITS) if isinstance(v, float) else v for name, v in record.items()}
    )
