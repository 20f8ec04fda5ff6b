"""`--json`: one answer as one line for a program."""

import dataclasses
import json
from collections.abc import Sequence

from ..inference import Candidate, Choice, GenerationStats, InferenceEngine
from ..tokenizer import Tokenizer
from .answer import Answer
from .escape import replace_surrogates

_DIGITS = 6  # of a time in seconds
# What OpenAI writes for a token that the model gives no chance; JSON has no infinity.
_NO_CHANCE = -9999.0


def answer_record(
    engine: InferenceEngine,
    answer: Answer,
    token_ids: Sequence[int],
    stats: GenerationStats,
    choices: Sequence[Choice],
    logprobs: int | None,
    line: int | None,
) -> str:
    """Return an answer, also an interrupted one, as a JSON object on one line, in ASCII.

    `model`, `text`, `token_ids` (those of the answer, an end token included), `stop_reason`,
    `context_length`, the fields of `GenerationStats` (counts, seconds and the seed), and on request
    `logprobs` in the shape of OpenAI's chat API, with the `id` of each token.

    Args:
        engine: the one that answered.
        answer: its text, and why it stopped.
        token_ids: its tokens.
        stats: what it took.
        choices: how its tokens were chosen.
        logprobs: how many of the most probable tokens to tell of; None for no log-probabilities.
        line: of the file of prompts, which is then the first field.
    """
    record = {
        "model": replace_surrogates(str(engine.model.source_directory)),
        "text": answer.text,
        "token_ids": token_ids,
        "stop_reason": answer.stop_reason,
        "context_length": engine.sequence_length,
        **dataclasses.asdict(stats),
    }
    record = {name: round(v, _DIGITS) if isinstance(v, float) else v for name, v in record.items()}
    if line is not None:
        record = {"line": line, **record}
    if logprobs is not None:
        assert engine.model.tokenizer is not None
        tokenizer = engine.model.tokenizer
        record["logprobs"] = {"content": [_logprobs(tokenizer, c, logprobs) for c in choices]}
    return json.dumps(record)


def _logprobs(tokenizer: Tokenizer, choice: Choice, count: int) -> dict[str, object]:
    """Return the natural log-probabilities of a drawn token and of the most probable ones.

    They are the model's own: no temperature, penalty or filter has touched them.
    """

    def told(candidate: Candidate) -> dict[str, object]:
        token = candidate.token_id
        return {
            "id": token,
            "token": tokenizer.decode([token]),
            "bytes": list(tokenizer.token_bytes(token)),
            "logprob": max(candidate.log_probability, _NO_CHANCE),
        }

    drawn = next(found for found in choice.candidates if found.token_id == choice.token_id)
    return {**told(drawn), "top_logprobs": [told(found) for found in choice.candidates[:count]]}
