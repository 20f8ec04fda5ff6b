"""Errors about model names, in the form `NAME: KEY: expected X, got Y`."""

from ..ml.errors import LlamaBoltsError


class CatalogError(LlamaBoltsError):
    """Raised when no model has the given name, or when a download fails."""


def mismatch(name: str, key: str, expected: object, actual: object) -> CatalogError:
    """Return the error `NAME: KEY: expected X, got Y`, without escaping its parts."""
    return CatalogError(f"{name}: {key}: expected {expected}, got {actual}")
