"""Numbers in sentences."""

NO_MEMORY_TEXT = "memory: the system gave none"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
