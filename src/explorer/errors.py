"""The error of the explorer."""

from ..ml.errors import LlamaBoltsError


class ExplorerError(LlamaBoltsError):
    """The explorer cannot show the requested run."""
