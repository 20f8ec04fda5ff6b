"""Exceptions raised while generating an answer to a prompt."""

from ..ml.errors import LlamaBoltsError


class InferenceError(LlamaBoltsError):
    """Base class of errors in a request. The engine's state remains unchanged."""


class PromptError(InferenceError):
    """Raised when a prompt or a limit is invalid for the model."""


class ContextFullError(InferenceError):
    """Raised when a prompt leaves no room for an answer in the context.

    Attributes:
        tokens: The prompt length.
        positions: The context length.
    """

    def __init__(self, tokens: int, positions: int) -> None:
        super().__init__(
            "[generate] prompt_ids must leave room for an answer in the context: "
            f"{tokens} tokens >= {positions} positions"
        )
        self.tokens = tokens
        self.positions = positions

    @property
    def sizes(self) -> str:
        """A clause with both lengths, used in terminal and server error messages."""
        return f"it takes {self.tokens} tokens, and the context has {self.positions}"


class NumericError(InferenceError):
    """Raised when the logits are not finite."""


class SamplingError(InferenceError):
    """Raised when a sampling setting is out of range."""


class GrammarError(InferenceError):
    """Raised for an invalid grammar, or a grammar that an answer cannot follow."""


class GrammarLimitError(InferenceError):
    """Raised when too many grammars are in use."""


class ChatFormatError(InferenceError):
    """Raised when messages are invalid or the chat format cannot represent them."""


class QueueFullError(InferenceError):
    """Raised when too many requests are waiting."""


class TimeLimitError(InferenceError):
    """Raised when a request's time limit expires before its first token is drawn."""


class ClosedError(InferenceError):
    """Raised when a request is made to a closed engine."""


class ThreadRefusedError(InferenceError):
    """Raised when the engine thread cannot be started. The next request tries again."""


class PromptCacheError(InferenceError):
    """Raised when a prompt cache file cannot be used or written."""
