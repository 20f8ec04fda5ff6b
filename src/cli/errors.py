"""What can be wrong with a request to the command line."""

from ..ml.errors import LlamaBoltsError


class UsageError(LlamaBoltsError):
    """A request that makes no sense; nothing was run."""


class DifferenceError(LlamaBoltsError):
    """A result that is not the expected one; the report before it says what differs."""
