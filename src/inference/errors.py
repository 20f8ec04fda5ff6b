"""What can go wrong between a prompt and its answer."""

from ..ml.errors import LlamaBoltsError


class InferenceError(LlamaBoltsError):
    """A request that the engine cannot answer; its state is as before."""


class PromptError(InferenceError):
    """A prompt or a limit that makes no sense for this model."""


class ContextFullError(InferenceError):
    """A prompt that leaves no room for an answer in the context.

    Attributes:
        tokens: Those of the prompt.
        positions: Those of the context.
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
    """A grammar that cannot be used, or that an answer cannot be made by."""


class GrammarLimitError(InferenceError):
    """A grammar that finds as many in use as may be."""


class ChatFormatError(InferenceError):
    """Messages that the chat format cannot express."""


class QueueFullError(InferenceError):
    """A request that finds as many waiting as may wait."""


class TimeLimitError(InferenceError):
    """A request whose time was over before its first token was drawn."""


class ClosedError(InferenceError):
    """A request to an engine that was closed."""


class ThreadRefusedError(InferenceError):
    """A thread of the engine that the system does not start;
    a later request tries again.
    """


class PromptCacheError(InferenceError):
    """A file with a prompt cache that cannot be used or written."""
