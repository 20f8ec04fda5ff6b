"""The errors of the tensor library, and the root of all errors of the package.

Texts read `[op] rule as an equality: both values`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class LlamaBoltsError(Exception):
    """Root of every error that this package raises on purpose."""


class TensorError(LlamaBoltsError):
    """Root of the errors of `ml`: a tensor, an op or a setting of the kernels is
    rejected.
    """


class ShapeError(TensorError):
    """Sizes or numbers of dimensions that do not fit together."""


class DTypeError(TensorError):
    """A dtype that an op does not take, or dtypes that do not fit together."""


class TensorTypeError(TensorError, TypeError):
    """An argument that is not a tensor, or a tensor where a truth value is asked for."""


class TensorMemoryError(TensorError, MemoryError):
    """Memory for a tensor that the system refuses."""


class IndexOutOfRangeError(TensorError):
    """An index, a dimension or the end of a slice outside of its range."""


class KernelSettingError(TensorError):
    """An instruction set or a number of threads that is not available."""


@contextmanager
def declared_lack_of_memory(
    where: str, declared: type[LlamaBoltsError]
) -> Iterator[None]:
    """Turn a MemoryError of Python or NumPy into the declared error, which says where it
    was.
    """
    try:
        yield
    except LlamaBoltsError:
        raise
    except MemoryError as error:
        raise declared(f"[{where}] memory: the system refused the allocation") from error
