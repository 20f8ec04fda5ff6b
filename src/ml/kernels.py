"""Loads the C kernels, chooses instruction set and threads, and allocates memory.

The OpenMP library reads its environment while it is loaded, and prints about values that
it does not understand. So all its variables are hidden from it, and this module reads the
relevant ones. If the library cannot create a thread, it ends the process, so Python first
tries to create as many threads.
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

# The most multiply-adds of one call of a kernel: Python handles an interrupt between two
# calls.
MULTIPLY_ADDS_PER_CALL = 2**33
ISA_VARIABLE = "LLAMA_BOLTS_ISA"
# How a thread waits for work, by the value of OMP_WAIT_POLICY: it spins for a time that
# depends on how busy the processors are and then sleeps, or it spins without end, or it
# sleeps.
_WAITING = {
    "": "WAITING_ADAPTIVE",
    "active": "WAITING_ACTIVE",
    "passive": "WAITING_PASSIVE",
}
# Bytes of address space to leave free after creating threads, for OpenMP's own
# allocations.
_HEADROOM = 16 << 20
_TASKS = "/proc/self/task"


def _running_threads() -> int:
    """Return the number of threads of this process, or 0 if it is unknown."""
    return len(os.listdir(_TASKS)) if os.path.isdir(_TASKS) else 0


def _creatable_threads(wanted: int) -> int:
    """Create idle threads, all at once; return how many the system allowed."""
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
        pass  # the threads created so far are counted
    finally:
        for gate in gates:
            gate.release()
    # Their stacks are freed when they have ended, which Python does not wait for.
    deadline = time.monotonic() + 1
    while _running_threads() > before and time.monotonic() < deadline:
        time.sleep(0.0001)
    return len(gates)


def _wanted_threads(variable: str) -> int | None:
    """Return the number of threads in an OpenMP variable, or None.

    Of a list, the first number counts.
    """
    first = os.environ.get(variable, "").split(",")[0].strip()
    if not (first.isascii() and first.isdigit() and len(first) < 10):
        return None
    return int(first) or None


def _load_kernels() -> Any:
    """Import the extension while the variables of OpenMP are hidden from its library."""
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

# All valid names, for each kind of processor from the fastest to the slowest.
_ISAS = "avx512bf16", "avx512", "avx2", "neonbf16", "neondot", "neon", "portable"
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
# The number of threads for kernel calls. It has no value before the system has been asked
# for that many threads, or while the environment requests an instruction set that is not
# available. Then the first op gets it from `__getattr__`, and later ops read an attribute
# without a call.
threads: int


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets of this build and machine, the fastest first."""
    return tuple(
        name for name, number in _ISA_NUMBERS.items() if lib.isa_available(number)
    )


def set_isa(name: str) -> None:
    """Choose the instruction set of all kernels, or raise KernelSettingError."""
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
        n: At least 1. A larger number than 256, than a build for one thread supports, or
            than 1 in a forked child (whose other threads stayed in the parent) is
            clamped.

    Raises:
        KernelSettingError: The argument is not an integer, or less than 1.
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
    """Return the number of threads for a kernel call, and set `threads` to it.

    Raise KernelSettingError if the environment requests an instruction set that is not
    available. The first op raises it, not the import, so that a program can report it
    like any error. If the system refuses as many threads, warn once and use fewer.
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
    """Return `threads` if it has no value yet."""
    if name != "threads":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return checked_threads()


# Both functions are for programs, not libraries: the handler of SIGBUS and the allocation
# of memory belong to the process.
def exit_on_bus_error() -> None:
    """End the process with exit code 3 if a mapped file cannot provide a page."""
    lib.exit_on_bus_error()


def keep_freed_memory() -> None:
    """Keep up to 128 MiB of freed tensor memory in the process; only with glibc."""
    lib.keep_freed_memory()  # the system would clear each page that it provides again


def build_info() -> dict[str, Any]:
    """Describe the kernels: what is in use and how they were built.

    Returns:
        isa, available_isas, threading ("OpenMP", "pthreads" or "serial"), openmp (bool),
        openmp_version, compiler, threads.

    Raises:
        KernelSettingError: The environment requests an instruction set that is not
            available.
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
    """Keep a forked child from waiting for threads that it does not have."""
    global _most_threads
    _most_threads = 1
    set_num_threads(1)


# The instruction set that the environment names, or else the fastest one.
_wanted_isa = os.environ.get(ISA_VARIABLE) or available_isas()[0]
_refused_isa: str | None = None if _wanted_isa in available_isas() else _wanted_isa
lib.isa_select(_ISA_NUMBERS[available_isas()[0] if _refused_isa else _wanted_isa])
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


CHARS = ffi.typeof("char[]")
VOID_POINTER = ffi.typeof("void *")
_ADDRESS = ffi.typeof("uintptr_t")
WEIGHT = ffi.typeof("Weight *")

# `new_bytes(CHARS, n)` returns n uninitialized bytes, which live as long as the result.
new_bytes = ffi.new_allocator(should_clear_after_alloc=False)
_local = threading.local()


def pointer(bytes_or_address: Any) -> Any:
    """Return an address or allocated bytes as a `void *`."""
    return ffi.cast(VOID_POINTER, bytes_or_address)


def as_address(bytes_or_address: Any) -> int:
    """Return allocated bytes or a pointer as an integer address."""
    return int(ffi.cast(_ADDRESS, bytes_or_address))


def weight(pointers: Sequence[Any], code: int, offset: float = 0.0) -> Any:
    """Return the kernels' Weight over parts that must outlive it.

    Data is required; scales, absmax and the nested code may be left out.
    """
    data, scales, absmax, nested_code, *_ = *pointers, ffi.NULL, ffi.NULL, ffi.NULL
    return ffi.new(WEIGHT, (data, scales, absmax, nested_code, offset, code))[0]


def scratch(nbytes: int) -> Any:
    """Return at least `nbytes` bytes for a kernel to use during its call.

    The bytes belong to the calling thread, so that two threads may compute at once. They
    are kept, and replaced if more are needed. Raise TensorMemoryError if the system
    refuses them.
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
