"""Tensors of random numbers."""

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.random  # now: NumPy imports it lazily, and an interrupt inside of that would be lost

from ..checks import float_dtype, rounded, sizes_and_dtype
from ..dtype import DType, float32
from ..errors import TensorError, TensorTypeError
from ..layout import Shape, packed
from ..op import op
from ..tensor import Tensor


class Generator:
    """A source of random numbers: equal seeds give equal numbers.

    Args:
        seed: An integer of at least 0, others are refused; the system chooses when left out.
    """

    def __init__(self, seed: int | None = None) -> None:
        try:
            self.numpy = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise TensorError(f"[Generator] seed must be an integer >= 0: {seed!r:.80}") from None


_finfo: Any = ml_dtypes.finfo  # it has no types
_default_generator = Generator()


@op
def rand(
    *shape: int | Iterable[int], generator: Generator | None = None, dtype: DType | str = float32
) -> Tensor:
    """Draw numbers from [0, 1), each multiple of the dtype's precision equally often.

    out = k * 2 ** -bits,  k in [0, 2 ** bits)

    Args:
        shape: Sizes, or one sequence of them.
        generator: Where the numbers come from; one of the process when left out.
        dtype: A real floating-point dtype.
    """
    sizes, row = sizes_and_dtype("rand", shape, dtype)
    bits = _finfo(float_dtype("rand", row).numpy_dtype).nmant + 1
    drawn = _numpy_of("rand", generator, sizes).integers(0, 2**bits, sizes)
    return rounded(np.ldexp(drawn.astype(np.float32), -bits), row)


@op
def randn(
    *shape: int | Iterable[int], generator: Generator | None = None, dtype: DType | str = float32
) -> Tensor:
    """Draw from the normal distribution with mean 0 and variance 1; the rest as in `rand`."""
    sizes, row = sizes_and_dtype("randn", shape, dtype)
    float_dtype("randn", row)
    return rounded(_numpy_of("randn", generator, sizes).standard_normal(sizes, np.float32), row)


def _numpy_of(op: str, generator: Any, sizes: Shape) -> np.random.Generator:
    """Return NumPy's generator, which ours draws from; sizes beyond all addresses are refused."""
    packed(sizes, 8)
    if not isinstance(generator, Generator | None):
        raise TensorTypeError(f"[{op}] generator must be a Generator: {type(generator).__name__}")
    return (generator or _default_generator).numpy
