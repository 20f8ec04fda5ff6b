"""Runs the same kernels again without the Python around them.

Each token of an answer takes the kernel calls of the token before: the same weights, shapes and
buffers, only the position has moved on. While a large model streams through the caches, the Python
of an op is itself read from memory anew each time, and costs ten times what it costs when it is
timed alone. So the calls of one step are recorded with their arguments, and repeated as they stand.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import native, native_attention, native_memory, native_products, native_quantized
from .kernel_settings import ffi, kernel_threads, lib
from .native_checks import dense
from .native_memory import address_of, pointer
from .tensor import Tensor

Step = Callable[[Tensor, int], Tensor]
# A kernel and its arguments.
Call = tuple[Callable[..., Any], list[Any]]

_KERNELS = frozenset(
    ("attention", "convert", "elementwise", "linear", "rms_norm", "rotary", "write_cache")
)
_HARMLESS = frozenset(("attention_scratch_bytes", "product_scratch_bytes"))
_CALLERS: tuple[Any, ...] = (native, native_attention, native_products, native_quantized)

# Which argument of a kernel is the position of the first token.
_POSITION_AT = {"write_cache": 5, "attention": 6}
# Rotary's is a pointer to a row of the table, h floats long.
_FREQUENCIES_AT, _HEAD_DIM_AT, _FLOAT_BYTES = 1, 7, 4

# Which Python thread records: only one at a time. A lock would have to be released after it was
# taken, and Ctrl-C may come between the two; a thread that left this entry behind takes it again.
_recording_thread: dict[str, int] = {}
_IS = "is"
# What stands elsewhere while it does: where, by which name, and what was there.
_replaced: list[tuple[Any, str, Any]] = []
# Recordings of an earlier generation are void.
_generation = 0


def forget_recordings() -> None:
    """Make all recordings void: what they were made with has changed."""
    global _generation
    _generation += 1


class Replay:
    """Repeats a step: a function of a tensor and of a position.

    The first run records the kernel calls of the function; later ones make these calls alone, and
    give the same bits. A function that computes anything outside of these kernels is run as it is.
    It is recorded anew for another owner, number of threads, Python thread, or form of x, and after
    `forget_recordings`.
    """

    __slots__ = ("_calls", "_kept", "_key", "_moving", "_result", "_x")

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()

    def run(self, owner: object, step: Step, x: Tensor, position: int) -> Tensor:
        """Return step(x, position).

        Args:
            owner: what the step computes with; kept alive. The same owner means the same step.
            step: its kernel calls depend on the values of `x` and, in the rotary embedding, the
                cache and attention, on the position; on nothing else.
            x: contiguous.
            position: of the first token. The caller has checked that the cache holds all of them.

        Returns:
            The result; the next run may overwrite it.
        """
        key = (
            id(owner), _generation, kernel_threads(), threading.get_ident(), x._shape, x._dtype
        )  # fmt: skip
        if key != self._key:
            return self._record(key, owner, step, x, position)
        if not self._calls:
            return step(x, position)
        ffi.memmove(self._x, pointer(dense("Replay", "x", x)), x.nbytes)
        for arguments, index, value_at in self._moving:
            arguments[index] = value_at(position)
        for kernel, arguments in self._calls:
            kernel(*arguments)
        return self._result

    def _record(
        self, key: tuple[object, ...], owner: object, step: Step, x: Tensor, position: int
    ) -> Tensor:
        self._key = ()
        mine = threading.get_ident()
        if _recording_thread.setdefault(_IS, mine) != mine:
            return step(x, position)
        try:
            try:
                recorder = _Recorder()
                _put_in_place(recorder)
                own = Tensor._empty(x._shape, x._dtype)
                ffi.memmove(own._storage.owner, pointer(dense("Replay", "x", x)), x.nbytes)
                result = step(own, position)
            finally:
                _put_back()
        finally:
            _put_back()  # again, for Ctrl-C may have come in the line above
        self._calls: list[Call] = recorder.calls if recorder.is_complete else []
        self._moving = list(_moving(recorder.names, self._calls, position))
        self._x, self._result, self._kept = own._storage.owner, result, (owner, recorder.memory)
        self._key = key
        return result


class _Recorder:
    """Stands in for the kernels' library, and notes what one Python thread calls.

    Attributes:
        names, calls: of the kernels, in order.
        memory: what was allocated meanwhile, so that no two results share a place.
        is_complete: whether nothing was computed but by these calls.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.calls: list[Call] = []
        self.memory: list[object] = []
        self.is_complete = True
        self._thread = threading.get_ident()

    def is_mine(self) -> bool:
        """Tell whether the calling thread is the one that records."""
        return threading.get_ident() == self._thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(lib, name)
        if not callable(found) or name in _HARMLESS or not self.is_mine():
            return found
        if name not in _KERNELS:
            self.is_complete = False
            return found

        def noting(*arguments: Any) -> None:
            self.names.append(name)
            self.calls.append((found, list(arguments)))
            found(*arguments)

        return noting

    def noting_memory(self, allocate: Callable[..., object]) -> Callable[..., object]:
        """Return an allocator whose memory is kept."""

        def noting(*arguments: Any) -> object:
            memory = allocate(*arguments)
            if self.is_mine():
                self.memory.append(memory)
            return memory

        return noting

    def noting_views(self, view: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """Return a method that gives an array: what is done with it is not seen here."""

        def noting(x: Tensor) -> Any:
            self.is_complete &= not self.is_mine()
            return view(x)

        return noting


def _put_in_place(recorder: _Recorder) -> None:
    """Put a recorder in the place of the library, of the allocator and of the ways to NumPy."""
    for module in _CALLERS:
        _replace(module, "lib", recorder)
    _replace(native_memory, "allocate", recorder.noting_memory(native_memory.allocate))
    for name in ("numpy", "bits"):
        _replace(Tensor, name, recorder.noting_views(getattr(Tensor, name)))


def _replace(owner: Any, name: str, value: object) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _put_back() -> None:
    """Undo what `_put_in_place` did, however far it came, and let others record.

    It may be interrupted before any line and called again.
    """
    while _replaced:
        setattr(*_replaced[-1])
        _replaced.pop()
    _recording_thread.pop(_IS, None)


def _moving(
    names: list[str], calls: list[Call], position: int
) -> Iterator[tuple[list[Any], int, Callable[[int], Any]]]:
    """Yield the arguments that depend on the position: their list, their index, and their value.

    Args:
        names: of the kernels.
        calls: their arguments at a position.
        position: that one.
    """
    for name, (_, arguments) in zip(names, calls, strict=False):
        if name in _POSITION_AT:
            yield arguments, _POSITION_AT[name], int
        elif name == "rotary":
            row_bytes = arguments[_HEAD_DIM_AT] * _FLOAT_BYTES
            first = address_of(arguments[_FREQUENCIES_AT]) - position * row_bytes
            yield arguments, _FREQUENCIES_AT, _row_pointer(first, row_bytes)


def _row_pointer(first: int, row_bytes: int) -> Callable[[int], Any]:
    return lambda position: pointer(first + position * row_bytes)
