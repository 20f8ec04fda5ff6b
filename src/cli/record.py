"""`--json`: one answer as one line for a program."""

import dataclasses
import json
from typing import TYPE_CHECKING

from .escape import replace_surrogates

if TYPE_CHECKING:
    from .session import Session

_DIGITS = 6  # of a time in seconds


def answer_record(session: "Session") -> str:
    """Return the last answer of a session as a JSON object on one line, in ASCII.

    `model`, `text`, `token_ids` (the new tokens, an end token included), `stop_reason`,
    `context_length` and the fields of `GenerationStats`: counts, seconds and the seed.

    Args:
        session: the conversation; its last answer may be one that was interrupted.
    """
    last = session.last
    assert last is not None
    assert last.stats is not None
    record = {
        "model": replace_surrogates(str(session.engine.model.source_directory)),
        "text": last.answer.text,
        "token_ids": [step.token_id for step in last.steps],
        "stop_reason": last.answer.stop_reason,
        "context_length": session.engine.sequence_length,
        **dataclasses.asdict(last.stats),
    }
    return json.dumps(
        {name: round(v, _DIGITS) if isinstance(v, float) else v for name, v in record.items()}
    )
