"""Processors and threads that the system gives, and the variables that OpenMP may read."""

import _thread
import mmap
import os
import re
import time

# The variables of OpenMP that change how the kernels run, and the values that libgomp takes in
# silence. It does not see any others: they end the process, print, or concern what is not used.
_HEARD_VARIABLES = {
    "GOMP_SPINCOUNT": r"\d{1,15}|infinite|infinity",
    "OMP_DYNAMIC": "true|false",
    "OMP_PROC_BIND": "true|false|master|close|spread",
    "OMP_THREAD_LIMIT": r"[1-9]\d{0,8}",
    "OMP_WAIT_POLICY": "active|passive",
}
# Bytes of addresses that are left when threads were created: OpenMP allocates beside their stacks.
_HEADROOM = 16 << 20
_TASKS = "/proc/self/task"


def variables_to_hide() -> list[str]:
    """Return the names of the variables that OpenMP must not read while it is loaded."""
    return [
        name
        for name, value in os.environ.items()
        if name.startswith(("OMP_", "GOMP_"))
        and not re.fullmatch(_HEARD_VARIABLES.get(name, "(?!)"), value, re.ASCII | re.IGNORECASE)
    ]


def available_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def creatable_threads(wanted: int) -> int:
    """Create threads that do nothing, all at once; return how many of them the system gives."""
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


def _running_threads() -> int:
    """Return the threads of this process; 0 where the system does not tell."""
    try:
        return len(os.listdir(_TASKS))
    except OSError:
        return 0
