"""What can go wrong between a checkpoint and a running model."""

from ..ml.errors import LlamaBoltsError


class ModelError(LlamaBoltsError):
    """A model that cannot be loaded, or a call that the model cannot answer."""


class ModelConfigError(ModelError):
    """A configuration that contradicts itself or the tensors that came with it."""


def mismatch(what: str, expected: object, found: object) -> ModelConfigError:
    """Return the error of a value that is not what the rest of the model asks for."""
    return ModelConfigError(f"{what}: expected {expected}, got {found}")


class NotEnoughMemoryError(ModelError):
    """More memory is needed than is available, or the system refused it."""


class PositionError(ModelError):
    """Positions outside of the context, or a gap in its cache."""


class TokenIdError(ModelError):
    """Token ids that are not rows of the embedding table."""


class SaveError(ModelError):
    """A model that cannot be written: to this place, or in this format."""
