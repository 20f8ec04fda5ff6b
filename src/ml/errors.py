"""The errors of the tensor library, and the root of all errors of the package.

Texts read `[op] rule as an equality: both values`.
"""


class LlamaBoltsError(Exception):
    """Root of every error that this package raises on purpose."""


class TensorError(LlamaBoltsError):
    """Something that a tensor or an op refuses."""


class ShapeError(TensorError):
    """Sizes or numbers of dimensions that do not fit together."""


class DTypeError(TensorError):
    """A dtype that an op does not take, or dtypes that do not fit together."""


class TensorMemoryError(TensorError, MemoryError):
    """Memory for a tensor that the system does not give."""


class IndexOutOfRangeError(TensorError):
    """An index, a dimension or the end of a slice outside of its range."""
