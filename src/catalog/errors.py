"""The errors of names of models, and their one text form: `NAME: WHAT: expected X, got
Y`.
"""

from ..ml.errors import LlamaBoltsError


class CatalogError(LlamaBoltsError):
    """A name without a model, or a model that cannot be downloaded."""


def mismatch(name: str, what: str, expected: object, got: object) -> CatalogError:
    """Return the error `NAME: WHAT: expected X, got Y`;
    all four are shown as they are.
    """
    return CatalogError(f"{name}: {what}: expected {expected}, got {got}")
