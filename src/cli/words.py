"""Numbers in sentences, and what a lack of memory looks like."""

NO_MEMORY_TEXT = "memory: the system refused the allocation"
# What the loader of libraries says below a limit of addresses.
_LOADER_TEXTS = ("failed to map segment", "cannot map", "annot allocate memory")


def is_lack_of_memory(error: BaseException) -> bool:
    """Return whether memory is missing: for an object, or for a library that is to be loaded."""
    if isinstance(error, ImportError):
        return any(text in str(error) for text in _LOADER_TEXTS)
    return isinstance(error, MemoryError)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
