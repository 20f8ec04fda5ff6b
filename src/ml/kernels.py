"""Loads the C kernels, chooses the instruction set and the threads, and allocates memory
for them.

The OpenMP library reads its environment while it is loaded, and prints about values that
it does not understand; so all its variables are hidden from it, and this module reads
those that matter. Where it cannot create a thread it ends the process; so Python tries
that first.
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

# Multiply-adds of one call of a kernel, at most: Python sees an interrupt between two
# calls.
MULTIPLY_ADDS_PER_CALL = 2**33
ISA_VARIABLE = "LLAMA_BOLTS_ISA"
# What a thread does while it waits for work, by the value of OMP_WAIT_POLICY: it spins
# for a time that depends on how busy the processors are and then sleeps, or spins without
# end, or sleeps.
_WAITING = {
    "": "WAITING_ADAPTIVE",
    "active": "WAITING_ACTIVE",
    "passive": "WAITING_PASSIVE",
}
# Bytes of addresses that are left when threads were created: OpenMP allocates beside
# their stacks.
_HEADROOM = 16 << 20
_TASKS = "/proc/self/task"


def _running_threads() -> int:
    """Return the threads of this process; 0 where the system does not tell."""
    return len(os.listdir(_TASKS)) if os.path.isdir(_TASKS) else 0


def _creatable_threads(wanted: int) -> int:
    """Create threads that do nothing, all at once; return how many of them the system
    gives.
    """
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
        pass  # what was created until now is the answer
    finally:
        for gate in gates:
            gate.release()
    # Their stacks are free only when they have ended, which Python does not wait for.
    deadline = time.monotonic() + 1
    while _running_threads() > before and time.monotonic() < deadline:
        time.sleep(0.0001)
    return len(gates)


def _wanted_threads(variable: str) -> int | None:
    """Return the number that a variable of OpenMP asks for (a list counts by its first),
    if any.
    """
    first = os.environ.get(variable, "").split(",")[0].strip()
    if not (first.isascii() and first.isdigit() and len(first) < 10):
        return None
    return int(first) or None


def _load_kernels() -> Any:
    """Import the extension, and hide the variables of OpenMP from its library."""
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

# All names that may be asked for, those of a processor from the fastest to the slowest.
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
# What ops pass to the kernels. It has no value until the system has given as many
# threads, and while the environment asks for an instruction set that is not available:
# the first op gets it from `__getattr__`, and the following ones read an attribute
# without a call.
threads: int


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this build and this machine can run, the fastest
    first.
    """
    return tuple(
        name for name, number in _ISA_NUMBERS.items() if lib.isa_available(number)
    )


def set_isa(name: str) -> None:
    """Choose the instruction set of all kernels; raise KernelSettingError for one there
    is not.
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
        n: at least 1; more than 256, than a build for one thread has, or than 1 in a
            forked child (whose other threads stayed behind in the parent) is clamped.

    Raises:
        KernelSettingError: no integer, or less than 1.
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

    Raise KernelSettingError where the environment asks for an instruction set that is not
    available: the first op does, not the import, so that a program can report it as any
    error. Warn once, and take fewer threads, where the system does not give as many.
    """
    global threads, _threads, _most_threads, _proven_threads
    if _refused_isa is not None:
        set_isa(_refused_isa)
    if (wanted := _threads) > _proven_threads:
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
    """Return `threads` where it has no value yet."""
    if name != "threads":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return checked_threads()


# Both are for programs: the handler of SIGBUS and the allocation of memory belong to the
# process.
def exit_on_bus_error() -> None:
    """Let a page that a mapped file cannot give end the process with one line and exit
    code 3.
    """
    lib.exit_on_bus_error()


def keep_freed_memory() -> None:
    """Let up to 128 MiB that tensors leave stay with the process; with glibc alone."""
    lib.keep_freed_memory()  # the system clears each page that it gives


def build_info() -> dict[str, Any]:
    """Describe the kernels: what is in use and how they were built.

    Returns:
        isa, available_isas, threading ("OpenMP", "pthreads" or "serial"), openmp (bool),
        openmp_version, compiler, threads.

    Raises:
        KernelSettingError: The environment asks for an instruction set that is not
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


# The set that the environment names, or else the fastest.
_wanted_isa = os.environ.get(ISA_VARIABLE) or available_isas()[0]
_refused_isa: str | None = None if _wanted_isa in available_isas() else _wanted_isa
lib.isa_select(_ISA_NUMBERS[available_isas()[0] if _refused_isa else _wanted_isa])
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


CHARS = ffi.typeof("char[]")
VOID_POINTER = ffi.typeof("void *")
_ADDRESS = ffi.typeof("uintptr_t")
WEIGHT = ffi.typeof("Weight *")

# `new_bytes(CHARS, n)` are n bytes, uninitialized, that live as long as the result does.
new_bytes = ffi.new_allocator(should_clear_after_alloc=False)
_local = threading.local()


def pointer(place: Any) -> Any:
    """Return an address or allocated bytes as a `void *`,
    which C takes as any pointer.
    """
    return ffi.cast(VOID_POINTER, place)


def as_address(place: Any) -> int:
    """Return allocated bytes or a pointer as an address."""
    return int(ffi.cast(_ADDRESS, place))


def weight(pointers: Sequence[Any], code: int, offset: float = 0.0) -> Any:
    """Return the kernels' Weight over parts that outlive it; the last of four may be left
    out.
    """
    data, scales, absmax, nested_code, *_ = *pointers, ffi.NULL, ffi.NULL, ffi.NULL
    return ffi.new(WEIGHT, (data, scales, absmax, nested_code, offset, code))[0]


def scratch(nbytes: int) -> Any:
    """Return at least `nbytes` bytes that a kernel may use during its call, or
    TensorMemoryError.

    They belong to the calling thread, so that two threads may compute at once; they are
    kept, and replaced when more is needed.
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
