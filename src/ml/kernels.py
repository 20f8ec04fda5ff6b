"""Load the C kernels, choose their instruction set and threads, and allocate memory.

The OpenMP library reads its environment variables when it is loaded, and prints a message
about every value that it does not understand. So this module hides all of these variables
from the library and reads the relevant ones itself. OpenMP terminates the process if it
cannot create a thread, so Python first tests whether enough threads can be created.
"""

import _thread
import importlib
import mmap
import os
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

from .errors import KernelSettingError, TensorMemoryError
from .processors import usable_processors

# Maximum number of multiply-adds per kernel call. Calls must be short because Python can
# handle an interrupt only between two of them.
MULTIPLY_ADDS_PER_CALL = 2**33
ISA_VARIABLE = "LLAMA_BOLTS_ISA"
# How threads wait for work, by the value of OMP_WAIT_POLICY. Adaptive threads spin for a
# time that depends on the processor load and then sleep, active threads always spin, and
# passive threads sleep at once.
_WAITING = {
    "": "WAITING_ADAPTIVE",
    "active": "WAITING_ACTIVE",
    "passive": "WAITING_PASSIVE",
}
# Bytes of address space that must remain free for OpenMP's own allocations after all
# threads have been created.
_HEADROOM = 16 << 20
_TASKS = "/proc/self/task"


def _running_threads() -> int:
    """Return the number of threads in this process, or 0 if it is unknown."""
    return len(os.listdir(_TASKS)) if os.path.isdir(_TASKS) else 0


def _creatable_threads(wanted: int) -> int:
    """Create `wanted` idle threads and return how many of them the system allowed."""
    before = _running_threads()
    gates: list[_thread.LockType] = []
    try:
        with mmap.mmap(-1, _HEADROOM):
            for _ in range(wanted):
                gate = _thread.allocate_lock()
                gate.acquire()
                _thread.start_new_thread(gate.acquire, ())
                gates.append(gate)
    except (RuntimeError, OSError, MemoryError):
        pass  # count the threads that have been created so far
    finally:
        for gate in gates:
            gate.release()
    # The stacks are freed when the threads have ended, which Python does not wait for.
    deadline = time.monotonic() + 1
    while _running_threads() > before and time.monotonic() < deadline:
        time.sleep(0.0001)
    return len(gates)


def _wanted_threads(variable: str) -> int | None:
    """Return the number of threads that an OpenMP variable requests, or None.

    If the value is a list, only its first number is used.
    """
    first = os.environ.get(variable, "").split(",")[0].strip()
    if not (first.isascii() and first.isdigit() and len(first) < 10):
        return None
    return int(first) or None


def _load_kernels() -> Any:
    """Import the extension module while OpenMP's environment variables are hidden."""
    hidden = {
        name: os.environ.pop(name)
        for name in [*os.environ]
        if name.startswith(("OMP_", "GOMP_"))
    }
    try:
        return importlib.import_module("._kernels", __package__)
    except ImportError as error:
        from ..installation import install_hint

        hint = install_hint(builds=True)
        raise ImportError(f"the C kernels are not built ({error}): {hint}") from None
    finally:
        os.environ.update(hidden)


_kernels = _load_kernels()
ffi = _kernels.ffi
lib = _kernels.lib
MAX_THREADS: int = lib.MOST_THREADS

# All valid instruction set names, from fastest to slowest on each processor architecture.
_ISAS = (
    "avx512amx",
    "avx512bf16",
    "avx512",
    "avx2",
    "neonbf16",
    "neondot",
    "neon",
    "portable",
)
_ISA_NUMBERS = {name: getattr(lib, f"ISA_{name.upper()}") for name in _ISAS}

_threading = ffi.string(lib.threading()).decode()
_most_threads = 1 if _threading == "serial" else MAX_THREADS
_threads = min(
    _wanted_threads("OMP_NUM_THREADS") or MAX_THREADS,
    _wanted_threads("OMP_THREAD_LIMIT") or MAX_THREADS,
    usable_processors(),
    _most_threads,
)
_policy = os.environ.get("OMP_WAIT_POLICY", "").strip().lower()
lib.choose_waiting(getattr(lib, _WAITING.get(_policy, "WAITING_ADAPTIVE")))
_proven_threads = 1
# The number of threads for kernel calls. The attribute does not exist until this many
# threads have been created once, or while the environment requests an unavailable
# instruction set. The first op then triggers `__getattr__`, and later ops read a plain
# attribute without a function call.
threads: int


def _is_available(isa: str) -> bool:
    """Return whether this build and machine support an instruction set.

    For `avx512amx`, this asks Linux for the tile registers of the process.
    """
    return isa in _ISA_NUMBERS and bool(lib.isa_available(_ISA_NUMBERS[isa]))


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this build and machine support, fastest first."""
    return tuple(filter(_is_available, _ISA_NUMBERS))


def set_isa(name: str) -> None:
    """Choose the instruction set for all kernels.

    Raise KernelSettingError if it is not available.
    """
    global _refused_isa
    if name not in available_isas():
        reason = "not available here" if name in _ISA_NUMBERS else "unknown"
        raise KernelSettingError(
            f"[set_isa] instruction set must be one of {', '.join(available_isas())}: "
            f"{ascii(name)[:80]} is {reason}"
        )
    lib.isa_select(_ISA_NUMBERS[name])
    _refused_isa = None


def set_num_threads(n: int) -> None:
    """Choose how many threads the kernels use.

    Args:
        n: The number of threads, at least 1. It is clamped to 256, or to 1 in a
            single-threaded build or a forked child process, which does not inherit the
            parent's threads.

    Raises:
        KernelSettingError: If `n` is not an integer or is less than 1.
    """
    global _threads
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise KernelSettingError(
            f"[set_num_threads] n must be an integer >= 1: {ascii(n)[:80]}"
        )
    _threads = min(n, _most_threads)
    globals().pop("threads", None)


def get_num_threads() -> int:
    """Return how many threads the kernels use."""
    return _threads


def checked_threads() -> int:
    """Return the number of threads for a kernel call, and store it in `threads`.

    Raise KernelSettingError if the environment requests an unavailable instruction set.
    The first op raises this error instead of the import, so that programs can report it
    like any other error. If the system does not allow that many threads, warn once and
    use fewer.
    """
    global threads, _threads, _most_threads, _proven_threads
    if _refused_isa is not None:
        set_isa(_refused_isa)
    wanted = _threads
    if wanted > _proven_threads:
        _proven_threads = _creatable_threads(wanted - 1) + 1
        if _proven_threads < wanted:
            _threads = _most_threads = _proven_threads
            warnings.warn(
                f"[threads] the system refuses more than {_threads} of {wanted} threads: "
                f"the kernels use {_threads}",
                RuntimeWarning,
                stacklevel=3,
            )
    threads = _threads
    return threads


def __getattr__(name: str) -> int:
    """Compute `threads` when it is accessed for the first time."""
    if name != "threads":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return checked_threads()


# The next two functions are meant for programs, not for libraries, because they change
# the SIGBUS handler and the memory allocator of the whole process.
def exit_on_bus_error() -> None:
    """Exit the process with code 3 if a page of a mapped file cannot be read."""
    lib.exit_on_bus_error()


def keep_freed_memory() -> None:
    """Keep up to 128 MiB of freed tensor memory in the process; requires glibc."""
    lib.keep_freed_memory()  # saves the time in which the system clears returned pages


def build_info() -> dict[str, Any]:
    """Return the kernels' build and run-time configuration.

    Returns:
        A dict with the keys isa, available_isas, threading ("OpenMP", "pthreads" or
        "serial"), openmp (a bool), openmp_version, compiler and threads.

    Raises:
        KernelSettingError: If the environment requests an unavailable instruction set.
    """
    count = checked_threads()
    isa = lib.isa_selected()
    return {
        "isa": next(name for name in _ISAS if _ISA_NUMBERS[name] == isa),
        "available_isas": available_isas(),
        "threading": _threading,
        "openmp": lib.openmp_version() != 0,
        "openmp_version": lib.openmp_version(),
        "compiler": ffi.string(lib.compiler_version()).decode("ascii", "replace"),
        "threads": count,
    }


def _after_fork() -> None:
    """Switch a forked child to one thread, because only one thread survives a fork."""
    global _most_threads
    _most_threads = 1
    set_num_threads(1)


# The instruction set requested by the environment, or by default the fastest one.
_wanted_isa = os.environ.get(ISA_VARIABLE) or available_isas()[0]
_refused_isa: str | None = None if _is_available(_wanted_isa) else _wanted_isa
lib.isa_select(_ISA_NUMBERS[available_isas()[0] if _refused_isa else _wanted_isa])
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


CHARS = ffi.typeof("char[]")
VOID_POINTER = ffi.typeof("void *")
_ADDRESS = ffi.typeof("uintptr_t")
WEIGHT = ffi.typeof("Weight *")

# `new_bytes(CHARS, n)` returns a buffer of n uninitialized bytes.
new_bytes = ffi.new_allocator(should_clear_after_alloc=False)
_local = threading.local()


def pointer(bytes_or_address: Any) -> Any:
    """Convert an address or an allocated buffer to a `void *`."""
    return ffi.cast(VOID_POINTER, bytes_or_address)


def as_address(bytes_or_address: Any) -> int:
    """Convert an allocated buffer or a pointer to an integer address."""
    return int(ffi.cast(_ADDRESS, bytes_or_address))


def weight(
    pointers: Sequence[Any], code: int, offset: float = 0.0, activations: int = 0
) -> Any:
    """Create the C `Weight` struct from pointers to memory that must outlive it.

    The first pointer, to the data, is required. Pointers to scales, absmax and the nested
    code may follow.
    """
    data, scales, absmax, nested_code, *_ = *pointers, ffi.NULL, ffi.NULL, ffi.NULL
    fields = data, scales, absmax, nested_code, offset, code, activations
    return ffi.new(WEIGHT, fields)[0]


def scratch(nbytes: int) -> Any:
    """Return a scratch buffer of at least `nbytes` bytes for one kernel call.

    Each thread has its own buffer, so that several threads can compute at the same time.
    The buffer is reused, and replaced if a call needs a larger one. Raise
    TensorMemoryError if the allocation fails.
    """
    kept = getattr(_local, "scratch", None)
    if kept is None or len(kept) < nbytes:
        try:
            _local.scratch = kept = new_bytes(CHARS, nbytes)
        except (MemoryError, OverflowError):
            raise TensorMemoryError(
                f"[scratch] bytes must fit into memory: {nbytes}"
            ) from None
    return kept
