"""Errors between a checkpoint and a running model."""

from ..ml.errors import LlamaBoltsError


class ModelError(LlamaBoltsError):
    """A model that cannot be loaded, or a call that the model cannot answer."""


class ModelConfigError(ModelError):
    """A configuration that contradicts itself or its tensors."""


def mismatch(subject: str, expected: object, actual: object) -> ModelConfigError:
    """Return the error of a value that contradicts the rest of the model."""
    return ModelConfigError(f"{subject}: expected {expected}, got {actual}")


class NotEnoughMemoryError(ModelError):
    """More memory is needed than is available, or the system refused it."""


class PositionError(ModelError):
    """Positions outside of the context, or a gap in its cache."""


class TokenIdError(ModelError):
    """Token ids that are not rows of the embedding table."""


class SaveError(ModelError):
    """A model that cannot be written to this place or in this format."""
