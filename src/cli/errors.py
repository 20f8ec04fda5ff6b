"""What can be wrong with a request to the command line."""

from ..ml.errors import LlamaBoltsError


class UsageError(LlamaBoltsError):
    """A request that makes no sense; nothing was run."""
