"""Memory as the kernels take it: addresses as pointers, and uninitialised bytes."""

import threading
from typing import Any

from .kernel_settings import ffi

_CHARS = ffi.typeof("char[]")
_VOID_POINTER = ffi.typeof("void *")
_ADDRESS = ffi.typeof("uintptr_t")

_cast = ffi.cast
_new_chars = ffi.new_allocator(should_clear_after_alloc=False)
_local = threading.local()


def pointer(address: int) -> Any:
    """Turn an address into a `void *`, which C takes as a pointer to anything.

    Dtype, layout and length have been checked by then: `native_checks.py` gives the addresses.
    """
    return _cast(_VOID_POINTER, address)


def address_of(memory: Any) -> int:
    """Return the address of allocated bytes, or that which a pointer holds."""
    return int(_cast(_ADDRESS, memory))


def allocate(nbytes: int) -> Any:
    """Allocate bytes, uninitialised; they live as long as the result does."""
    return _new_chars(_CHARS, nbytes)


def scratch(nbytes: int) -> Any:
    """Give at least `nbytes` bytes that a kernel may use for the length of its call.

    They belong to the calling thread, so that two threads may compute at once; they are kept, and
    replaced when more is needed.
    """
    if getattr(_local, "nbytes", 0) < nbytes:
        _local.scratch = allocate(nbytes)
        _local.nbytes = nbytes
    return _local.scratch
