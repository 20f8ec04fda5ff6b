"""What can go wrong between a checkpoint and a running model."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..ml.errors import LlamaBoltsError


class ModelError(LlamaBoltsError):
    """A model that cannot be loaded, or a call that the model cannot answer."""


class ModelConfigError(ModelError):
    """A configuration that contradicts itself or the tensors that came with it."""


class NotEnoughMemoryError(ModelError):
    """Memory that there is not, or that the system does not give.

    Of a KV cache that does not fit, the text carries the arithmetic.
    """


class PositionError(ModelError):
    """Tokens that would lie outside of the context, or leave a gap in its cache."""


class TokenIdError(ModelError):
    """Token ids that are no row of the embedding table."""


@contextmanager
def declared_lack_of_memory(where: str) -> Iterator[None]:
    """Turn a MemoryError of Python or NumPy into an error of this package.

    Args:
        where: what was done.

    Raises:
        NotEnoughMemoryError: in the place of a MemoryError that is not of this package.
    """
    try:
        yield
    except LlamaBoltsError:
        raise
    except MemoryError as error:
        raise NotEnoughMemoryError(f"[{where}] memory: the system gave none") from error
