"""The errors of the tensor library, and the root of all errors of the package.

Messages have the form `[op] rule as an equality: both values`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class LlamaBoltsError(Exception):
    """Root of every error that this package raises on purpose."""


class TensorError(LlamaBoltsError):
    """Root of the errors of `ml`: an invalid tensor, op or kernel setting."""


class ShapeError(TensorError):
    """Incompatible sizes or numbers of dimensions."""


class DTypeError(TensorError):
    """A dtype that an op does not support, or incompatible dtypes."""


class TensorTypeError(TensorError, TypeError):
    """An argument that is not a tensor, or a tensor without a truth value."""


class TensorMemoryError(TensorError, MemoryError):
    """The system refuses memory for a tensor."""


class IndexOutOfRangeError(TensorError):
    """An index, a dimension or the end of a slice is outside of its range."""


class KernelSettingError(TensorError):
    """An instruction set or a number of threads is not available."""


@contextmanager
def declared_lack_of_memory(
    where: str, declared: type[LlamaBoltsError]
) -> Iterator[None]:
    """Convert a MemoryError to a declared error that names the place."""
    try:
        yield
    except LlamaBoltsError:
        raise
    except MemoryError as error:
        raise declared(f"[{where}] memory: the system refused the allocation") from error
