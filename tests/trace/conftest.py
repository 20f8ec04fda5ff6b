"""The model of one token per byte that the tests of the engine have too."""

from tests.inference.conftest import model

__all__ = ["model"]
