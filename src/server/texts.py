"""JSON, tokens as texts, and the events of a stream."""

from typing import Any

import msgspec

from ..inference import Choice
from ..tokenizer import Tokenizer

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
# What OpenAI writes for a token that the model gives no chance; JSON has no infinity.
NO_CHANCE = -9999.0


def event(data: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + encode(data) + b"\n\n"


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""Return a token as text; bytes that are no whole characters as `bytes:\xe2\x80`."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def log_probability(choice: Choice, token: int) -> float:
    """Return the natural logarithm of a candidate's probability by the model."""
    found = next(c.log_probability for c in choice.candidates if c.token_id == token)
    return max(found, NO_CHANCE)


def chat_logprobs(tokenizer: Tokenizer, choice: Choice, count: int) -> dict[str, Any]:
    """Return what a chat's `logprobs` say of a token.

    Args:
        tokenizer: Has the tokens' bytes.
        choice: How the token was drawn.
        count: Of how many alternatives to tell.
    """

    def entry(token: int) -> dict[str, Any]:
        return {
            "token": token_name(tokenizer, token),
            "logprob": log_probability(choice, token),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    top = [entry(candidate.token_id) for candidate in choice.candidates[:count]]
    return entry(choice.token_id) | {"top_logprobs": top}


class TextLogprobs:
    """The `logprobs` of a completion: lists with an entry for each token.

    Args:
        tokenizer: Has the tokens' texts.
        count: Of how many alternatives to tell.
        begin: How the text begins, which need not have the first token's name; or None.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, begin: str | None) -> None:
        self._tokenizer, self._count, self._begin = tokenizer, count, begin
        self._offset = 0

    def of(self, tokens: list[tuple[int, Choice | None]]) -> dict[str, list[Any]]:
        """Return what there is to say of tokens that follow those of the last call.

        Args:
            tokens: Ids, each with how it was drawn; None for the first of a prompt.
        """
        names, offsets = [], []
        chances: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token, choice in tokens:
            names.append(token_name(self._tokenizer, token))
            offsets.append(self._offset)
            if choice is not None or (self._begin or "").startswith(names[-1]):
                self._offset += len(names[-1])
            if choice is None:
                chances.append(None)
                tops.append(None)
                continue
            chances.append(log_probability(choice, token))
            tops.append(
                {
                    token_name(self._tokenizer, c.token_id): max(c.log_probability, NO_CHANCE)
                    for c in choice.candidates[: self._count]
                }
            )
        return {
            "tokens": names,
            "token_logprobs": chances,
            "top_logprobs": tops,
            "text_offset": offsets,
        }
