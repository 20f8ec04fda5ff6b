"""Storage: the flat range of bytes that a tensor and its views share; each keeps it alive.

It is memory that was allocated here (`char[]` of cffi), or a one-dimensional uint8 array over
memory that belongs to another object (an array, a mapped file).
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from . import kernels
from .kernels import ffi

# A `char[]` or an array of uint8: what only NumPy has is asked of arrays alone.
Storage = Any


def from_range(owner: object, address: int, nbytes: int, writable: bool) -> Storage:
    """Return the `nbytes` bytes from `address`, which live as long as `owner` does."""
    place = {"data": (address, not writable), "shape": (nbytes,), "typestr": "|u1", "version": 3}
    return np.asarray(SimpleNamespace(owner=owner, __array_interface__=place))


def is_storage(given: object) -> bool:
    """Tell whether an object is a storage."""
    if isinstance(given, np.ndarray):
        return given.dtype == np.uint8 and given.ndim == 1 and given.flags.c_contiguous
    return isinstance(given, ffi.CData) and ffi.typeof(given) is kernels.CHARS


def address_of(storage: Storage) -> int:
    """Return the address of the first byte."""
    if isinstance(storage, np.ndarray):
        address: int = storage.__array_interface__["data"][0]  # faster than ctypes.data
        return address
    return kernels.as_address(storage)


def is_writable(storage: Storage) -> bool:
    """Tell whether bytes may be set."""
    return not isinstance(storage, np.ndarray) or storage.flags.writeable


def buffer_of(storage: Storage) -> Any:
    """Return the bytes as an object with the buffer protocol, which keeps them alive."""
    return storage if isinstance(storage, np.ndarray) else ffi.buffer(storage)
