"""The errors of names of models: `NAME: KEY: expected X, got Y`."""

from ..ml.errors import LlamaBoltsError


class CatalogError(LlamaBoltsError):
    """A name without a model, or a failed download."""


def mismatch(name: str, key: str, expected: object, actual: object) -> CatalogError:
    """Return the error `NAME: KEY: expected X, got Y`, without escaping."""
    return CatalogError(f"{name}: {key}: expected {expected}, got {actual}")
