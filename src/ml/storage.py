"""Flat runs of bytes that tensors look at."""

from typing import Any

import numpy as np

from . import native_memory
from .errors import TensorMemoryError
from .kernel_settings import ffi


class _ByteRange:
    """Offer `nbytes` bytes from `address` to NumPy, and keep their owner alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: object, address: int, nbytes: int, writable: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, not writable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class Storage:
    """A flat run of bytes: who owns it, where it lies, how long it is, whether it may be written.

    `owner` is memory that was allocated here, or a uint8 array over memory that belongs to someone
    else (an array, a mapped file); holding it keeps the bytes alive.
    """

    __slots__ = ("_address", "_nbytes", "_owner", "_writable")

    _owner: Any
    _address: int
    _nbytes: int
    _writable: bool

    def __init__(self, nbytes: int) -> None:
        """Allocate `nbytes` bytes, uninitialised."""
        try:
            owner = native_memory.allocate(nbytes)
        except (MemoryError, OverflowError):
            raise TensorMemoryError(f"[empty] bytes must fit into memory: {nbytes}") from None
        self._owner = owner
        self._address = native_memory.address_of(owner)
        self._nbytes = nbytes
        self._writable = True

    @classmethod
    def from_bytes_array(cls, array: "np.ndarray[Any, np.dtype[np.uint8]]") -> "Storage":
        """Wrap a contiguous one-dimensional uint8 array, sharing its memory."""
        self = cls.__new__(cls)
        address, is_read_only = array.__array_interface__["data"]  # sooner than ctypes.data
        self._owner = array
        self._address = address
        self._nbytes = array.nbytes
        self._writable = not is_read_only
        return self

    @classmethod
    def from_range(cls, owner: object, address: int, nbytes: int, writable: bool) -> "Storage":
        """Wrap `nbytes` bytes from `address`, which live as long as `owner` does."""
        return cls.from_bytes_array(np.asarray(_ByteRange(owner, address, nbytes, writable)))

    @property
    def owner(self) -> object:
        """The object that keeps the bytes alive."""
        return self._owner

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self._address

    @property
    def nbytes(self) -> int:
        """The length in bytes."""
        return self._nbytes

    @property
    def writable(self) -> bool:
        """Whether the bytes may be written."""
        return self._writable

    def buffer(self) -> Any:
        """Give the bytes as an object with the buffer protocol, which keeps them alive."""
        owner = self._owner
        return owner if isinstance(owner, np.ndarray) else ffi.buffer(owner)
