"""Memory: flat ranges of bytes that tensors share."""

from typing import Any

import numpy as np

from . import kernels
from .errors import TensorMemoryError
from .kernels import ffi


class _ByteRange:
    """Offer `nbytes` bytes from `address` to NumPy, and keep their owner alive."""

    def __init__(self, owner: object, address: int, nbytes: int, writable: bool) -> None:
        data = (address, not writable)
        self.owner = owner
        self.__array_interface__ = {
            "data": data,
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class Storage:
    """A flat range of bytes: owner, length, pointer for C, and whether it may be written.

    `owner` is memory that was allocated here, or a uint8 array over memory that belongs to another
    object (an array, a mapped file); holding it keeps the bytes alive.
    """

    __slots__ = ("nbytes", "owner", "pointer", "writable")

    def __init__(self, nbytes: int) -> None:
        """Allocate `nbytes` bytes, uninitialized."""
        try:
            self.owner = self.pointer = kernels.new_bytes(kernels.CHARS, nbytes)
        except (MemoryError, OverflowError):
            raise TensorMemoryError(f"[empty] bytes must fit into memory: {nbytes}") from None
        self.nbytes = nbytes
        self.writable = True

    @classmethod
    def from_bytes_array(cls, array: "np.ndarray[Any, np.dtype[np.uint8]]") -> "Storage":
        """Wrap a contiguous one-dimensional uint8 array, sharing its memory."""
        self = cls.__new__(cls)
        address, is_read_only = array.__array_interface__["data"]  # faster than ctypes.data
        self.owner = array
        self.nbytes = array.nbytes
        self.writable = not is_read_only
        self.pointer = kernels.pointer(address)
        return self

    @classmethod
    def from_range(cls, owner: object, address: int, nbytes: int, writable: bool) -> "Storage":
        """Wrap `nbytes` bytes from `address`, which live as long as `owner` does."""
        return cls.from_bytes_array(np.asarray(_ByteRange(owner, address, nbytes, writable)))

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return kernels.address_of(self.pointer)

    def buffer(self) -> Any:
        """Return the bytes as an object with the buffer protocol, which keeps them alive."""
        owner = self.owner
        return owner if isinstance(owner, np.ndarray) else ffi.buffer(owner)
