"""Loads the C kernels, and holds what is chosen once: the instruction set and the threads.

The OpenMP library reads its environment while it is loaded, prints about values it does not
understand and spins for long between parallel regions; so the environment is put right first.
"""

import importlib
import os
from typing import Any

from .errors import LlamaBoltsError

MAX_THREADS = 256
ISA_VARIABLE = "LLAMA_BOLTS_ISA"
# Spins of a waiting thread, about 0.1 ms: longer than the Python between two ops, and short enough
# not to hold up others for long when the processors are shared.
_SPIN_COUNT = "2000"


class KernelSettingError(LlamaBoltsError):
    """An instruction set or a number of threads that cannot be had."""


def _affinity() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _wanted_threads(text: str | None) -> int | None:
    """Return the number that OMP_NUM_THREADS asks for (a list counts by its first), if any."""
    first = (text or "").split(",")[0].strip()
    if not (first.isascii() and first.isdigit() and len(first) < 10):
        return None
    return int(first) or None


def _load_kernels() -> Any:
    """Import the extension under an environment that its OpenMP library accepts in silence."""
    os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    text = os.environ.pop("OMP_NUM_THREADS", None)
    try:
        return importlib.import_module("._kernels", __package__)
    except ImportError as error:
        raise ImportError(
            f"the C kernels are not built ({error}): run `pip install -e .` in the repository"
        ) from None
    finally:
        if text is not None:
            os.environ["OMP_NUM_THREADS"] = text


_kernels = _load_kernels()
ffi = _kernels.ffi
lib = _kernels.lib

# All names that may be asked for, from the fastest to the slowest. On Arm the portable set is
# compiled for NEON, which every 64-bit Arm processor has.
_ISA_NUMBERS = {
    "avx512bf16": lib.ISA_AVX512BF16,
    "avx512": lib.ISA_AVX512,
    "avx2": lib.ISA_AVX2,
    "neon": None,
    "portable": lib.ISA_PORTABLE,
}

_threads = min(_wanted_threads(os.environ.get("OMP_NUM_THREADS")) or MAX_THREADS, _affinity())
_most_threads = MAX_THREADS if lib.openmp_version() else 1
_threads = min(_threads, _most_threads)
_refused_isa: str | None = None


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this build and this machine can run, the fastest first."""
    return tuple(
        name
        for name, number in _ISA_NUMBERS.items()
        if number is not None and lib.isa_available(number)
    )


def set_isa(name: str) -> None:
    """Choose the instruction set of all kernels.

    Args:
        name: one of `available_isas()`.

    Raises:
        KernelSettingError: unknown, or not to be had in this build or on this machine.
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
        n: at least 1; more than 256, than a serial build has, or than 1 in a forked child (whose
            OpenMP threads stayed behind in the parent) is clamped.

    Raises:
        KernelSettingError: no integer, or less than 1.
    """
    global _threads
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise KernelSettingError(f"[set_num_threads] n must be an integer >= 1: {ascii(n)[:80]}")
    _threads = min(n, _most_threads)


def get_num_threads() -> int:
    """Return how many threads the kernels use."""
    return _threads


def kernel_threads() -> int:
    """Return the number of threads for a kernel call.

    Raises:
        KernelSettingError: the environment asks for an instruction set that cannot be had. It is
            said here rather than on import, so that a program can report it as any other error.
    """
    if _refused_isa is not None:
        set_isa(_refused_isa)
    return _threads


def build_info() -> dict[str, Any]:
    """Describe the kernels: what is in use and how they were built.

    Returns:
        isa, available_isas, openmp (bool), openmp_version, compiler, threads.

    Raises:
        KernelSettingError: the environment asks for an instruction set that cannot be had.
    """
    threads = kernel_threads()
    names = {number: name for name, number in _ISA_NUMBERS.items()}
    return {
        "isa": names[lib.isa_selected()],
        "available_isas": available_isas(),
        "openmp": lib.openmp_version() != 0,
        "openmp_version": lib.openmp_version(),
        "compiler": ffi.string(lib.compiler_version()).decode("ascii", "replace"),
        "threads": threads,
    }


def _choose_isa() -> None:
    """Take the set that the environment names, or else the fastest."""
    global _refused_isa
    lib.isa_select(_ISA_NUMBERS[available_isas()[0]])
    wanted = os.environ.get(ISA_VARIABLE, "")
    if not wanted:
        return
    try:
        set_isa(wanted)
    except KernelSettingError:
        _refused_isa = wanted


def _after_fork() -> None:
    """Keep a forked child from waiting for threads that it does not have."""
    global _threads, _most_threads
    _threads = _most_threads = 1


_choose_isa()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
