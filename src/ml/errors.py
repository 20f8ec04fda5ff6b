"""Tensor library exceptions, and the base class of all exceptions in this package.

Messages have the form `[op] rule as an equality: both values`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class LlamaBoltsError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class TensorError(LlamaBoltsError):
    """Base class of all `ml` errors: invalid tensors, op calls and kernel settings."""


class ShapeError(TensorError):
    """Raised for incompatible sizes or numbers of dimensions."""


class DTypeError(TensorError):
    """Raised when an op does not support a dtype, or when dtypes are incompatible."""


class TensorTypeError(TensorError, TypeError):
    """Raised when an argument is not a tensor, or a tensor has no truth value."""


class TensorMemoryError(TensorError, MemoryError):
    """Raised when memory for a tensor cannot be allocated."""


class IndexOutOfRangeError(TensorError):
    """Raised when an index, a dimension or a slice bound is out of range."""


class KernelSettingError(TensorError):
    """Raised for an unavailable instruction set or an invalid number of threads."""


@contextmanager
def declared_lack_of_memory(
    where: str, declared: type[LlamaBoltsError]
) -> Iterator[None]:
    """Convert a MemoryError to the `declared` type, with `where` in its message."""
    try:
        yield
    except LlamaBoltsError:
        raise
    except MemoryError as error:
        raise declared(f"[{where}] memory: the system refused the allocation") from error
