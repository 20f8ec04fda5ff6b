"""Errors between a prompt and its answer."""

from ..ml.errors import LlamaBoltsError


class InferenceError(LlamaBoltsError):
    """A request that the engine cannot answer; the state of the engine is unchanged."""


class PromptError(InferenceError):
    """A prompt or a limit that is invalid for this model."""


class ContextFullError(InferenceError):
    """A prompt that leaves no room for an answer in the context.

    Attributes:
        tokens: The length of the prompt.
        positions: The length of the context.
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
        """The clause about both sizes that the terminal and the server print."""
        return f"it takes {self.tokens} tokens, and the context has {self.positions}"


class NumericError(InferenceError):
    """Logits that are not finite."""


class SamplingError(InferenceError):
    """A sampling setting outside of its range."""


class GrammarError(InferenceError):
    """An invalid grammar, or a grammar that an answer cannot follow."""


class GrammarLimitError(InferenceError):
    """A grammar that exceeds the number of grammars in use."""


class ChatFormatError(InferenceError):
    """Messages that the chat format cannot express."""


class QueueFullError(InferenceError):
    """A request that exceeds the number of waiting requests."""


class TimeLimitError(InferenceError):
    """A request whose time limit ended before its first token was drawn."""


class ClosedError(InferenceError):
    """A request to an engine that was closed."""


class ThreadRefusedError(InferenceError):
    """The system refuses to start an engine's thread; a later request tries again."""


class PromptCacheError(InferenceError):
    """A prompt cache file that cannot be used or written."""
