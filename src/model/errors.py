"""Errors raised by model configuration, loading, inference and saving."""

from ..ml.errors import LlamaBoltsError


class ModelError(LlamaBoltsError):
    """Base class of model errors, also raised for failed loading and invalid calls."""


class ModelConfigError(ModelError):
    """Raised when a configuration contradicts itself or the model's tensors."""


def mismatch(subject: str, expected: object, actual: object) -> ModelConfigError:
    """Return an error for a value that contradicts the rest of the model."""
    return ModelConfigError(f"{subject}: expected {expected}, got {actual}")


class NotEnoughMemoryError(ModelError):
    """Raised when the required memory is not available or cannot be allocated."""


class PositionError(ModelError):
    """Raised for positions outside the context or after a gap in its cache."""


class TokenIdError(ModelError):
    """Raised for invalid token ids, such as ids without a row in the embedding table."""


class InterventionError(ModelError):
    """Raised for interventions whose address or value does not fit the model."""


class SaveError(ModelError):
    """Raised when a model cannot be written to the given path or in the given format."""
