"""Convert tensors to NumPy arrays for a reader's function, and its results back."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ml


def floats(x: ml.Tensor) -> npt.NDArray[np.float32]:
    """Return the elements of a real tensor as a float32 array."""
    array: npt.NDArray[np.float32] = x.to(ml.float32).contiguous().numpy()
    return array.copy()


def tensor_of(array: Any, dtype: ml.DType) -> ml.Tensor:
    """Return a float32 array as a tensor of a dtype."""
    wide = np.ascontiguousarray(array, dtype=np.float32)
    return ml.Tensor.from_numpy(wide).to(dtype)


def random_floats(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Return normally distributed float32 elements, the same for each call."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
