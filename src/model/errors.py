"""What can go wrong between a checkpoint and a running model."""

from ..ml.errors import LlamaBoltsError


class ModelError(LlamaBoltsError):
    """A model that cannot be loaded, or a call that the model cannot answer."""


class ModelConfigError(ModelError):
    """A configuration that contradicts itself or the tensors that came with it."""


class NotEnoughMemoryError(ModelError):
    """A KV cache that does not fit; the text carries the arithmetic."""


class PositionError(ModelError):
    """Tokens that would lie outside of the context, or leave a gap in its cache."""


class TokenIdError(ModelError):
    """Token ids that are no row of the embedding table."""
