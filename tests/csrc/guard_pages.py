"""Memory that must not be left: arrays flush against forbidden pages, and blocks of their
own.

`GuardPages` gives arrays whose first byte follows a forbidden page, or whose last byte
lies before one; a kernel that touches the byte beyond is killed. `Blocks` gives each
array a block of malloc, for a checker that watches these (memcheck). `WatchedKernels`
stands between calls.py and the kernels and sees to it that no pointer of any call leads
anywhere else.
"""

import ctypes
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from . import calls
from .calls import ffi, lib
from .operands import Array
from .surface import Parameter, kernels

PAGE = mmap.PAGESIZE
NOTE_BYTES = 512
End = Literal["first", "last"]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


class Memory(Protocol):
    """Gives arrays, and knows where they begin."""

    lengths: dict[int, int]

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Give an array whose memory ends with it."""

    def release(self) -> None:
        """Take all arrays back."""


class Region:
    """Some pages between two that must not be touched."""

    def __init__(self, pages: int) -> None:
        memory = mmap.mmap(-1, (pages + 2) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for guard in (start, start + (pages + 1) * PAGE):
            if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.pages = pages
        self.address = start + PAGE
        self.bytes = np.frombuffer(memory, np.uint8, pages * PAGE, PAGE)


class GuardPages:
    """Arrays whose first byte follows a forbidden page, or whose last byte lies before
    one.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        self._free: dict[int, list[Region]] = {}
        self._taken: list[Region] = []
        self.lengths: dict[int, int] = {}

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        pages = -(-max(nbytes, 1) // PAGE)
        free = self._free.setdefault(pages, [])
        region = free.pop() if free else Region(pages)
        self._taken.append(region)
        start = 0 if self._end == "first" else pages * PAGE - nbytes
        self.lengths[region.address + start] = nbytes
        return region.bytes[start : start + nbytes].view(dtype).reshape(shape)

    def release(self) -> None:
        for region in self._taken:
            self._free[region.pages].append(region)
        self._taken.clear()
        self.lengths.clear()


class Blocks:
    """Arrays that are blocks of malloc, of their exact size and with nothing in them."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        address = _libc.malloc(nbytes)
        self.lengths[address] = nbytes
        return np.ndarray(shape, dtype, (ctypes.c_char * nbytes).from_address(address))

    def release(self) -> None:
        for address in self.lengths:
            _libc.free(address)
        self.lengths.clear()


class Note:
    """A line in a file that outlives the program: which call it was that ended it."""

    def __init__(self, path: Path | None) -> None:
        self._page: Any = bytearray(NOTE_BYTES)
        if path is not None:
            with path.open("w+b") as file:
                file.truncate(NOTE_BYTES)
                self._page = mmap.mmap(file.fileno(), NOTE_BYTES)

    def write(self, text: str) -> None:
        self._page[:] = text.encode()[:NOTE_BYTES].ljust(NOTE_BYTES)


class WatchedKernels:
    """Stands in for the kernels' library: checks each pointer, counts each call, and
    makes it.

    What Python hands over beside tensors (the structs of weights, a place for a result)
    is moved into watched memory first.

    Attributes:
        calls: how many were made of each kernel.
    """

    def __init__(self, memory: Memory, note: Note) -> None:
        self._memory = memory
        self._note = note
        self._kernels = kernels()
        self.calls = dict.fromkeys(self._kernels, 0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(lib, name)
        if name not in self._kernels:
            return found

        def watched(*arguments: Any) -> Any:
            passed = self._watch(name, arguments)
            return found(*passed)

        self.__dict__[name] = watched
        return watched

    def scratch(self, nbytes: int) -> Any:
        """Give scratch that ends where the kernel asked it to."""
        return ffi.cast("char *", self._memory.array((nbytes,), np.uint8).ctypes.data)

    def _watch(self, name: str, arguments: tuple[Any, ...]) -> list[Any]:
        pairs = list(zip(self._kernels[name], arguments, strict=True))
        passed = [self._pointer(name, p, v) if p.is_pointer else v for p, v in pairs]
        numbers = {
            p.name: v for p, v in pairs if not p.is_pointer and p.name != "threads"
        }
        self.calls[name] += 1
        self._note.write(f"{name} {numbers}")
        return passed

    def _pointer(self, name: str, parameter: Parameter, value: Any) -> Any:
        kind = ffi.typeof(value)
        if (
            kind.kind == "array"
            or kind.item.kind == "struct"
            or kind.item.cname == "float"
        ):
            self._check_structs(name, value)
            held = np.frombuffer(ffi.buffer(value), np.uint8)
            copy = self._memory.array(held.shape, np.uint8)
            copy[...] = held
            return ffi.cast(f"{kind.item.cname} *", copy.ctypes.data)
        self._check(f"{name}: {parameter.name}", value)
        return value

    def _check_structs(self, name: str, value: Any) -> None:
        """Check the pointers of each LinearPart or Weight."""
        if ffi.typeof(value).item.kind != "struct":
            return
        for struct in value if ffi.typeof(value).kind == "array" else [value[0]]:
            for label, field in ffi.typeof(struct).fields:
                if field.type.kind == "pointer":
                    self._check(f"{name}: {label}", getattr(struct, label))
                elif field.type.kind == "struct":
                    self._check_structs(name, ffi.addressof(struct, label))

    def _check(self, label: str, value: Any) -> None:
        address = int(ffi.cast("uintptr_t", value))
        if address and address not in self._memory.lengths:
            raise AssertionError(f"{label} points to memory that is not watched")


@contextmanager
def watching(memory: Memory, note: Note) -> Iterator[WatchedKernels]:
    """Put watched kernels, and scratch in watched memory, behind calls.py."""
    watched: Any = WatchedKernels(memory, note)
    kept = calls.lib, calls.scratch
    calls.lib = watched
    calls.scratch = watched.scratch
    try:
        yield watched
    finally:
        calls.lib, calls.scratch = kept
