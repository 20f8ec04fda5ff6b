"""The error raised by the explorer."""

from ..ml.errors import LlamaBoltsError


class ExplorerError(LlamaBoltsError):
    """Raised when the explorer cannot show the requested run."""
