"""The bounds of the standard for hostile files: a second of processor time and 64 MiB."""

import time
import tracemalloc
from collections.abc import Callable

SECONDS = 1.0
BYTES = 64 << 20


def check_bounds(refuse: Callable[[], object]) -> None:
    """Run a refusal twice: within its time, and then, slowed down by being watched, its
    memory.
    """
    started = time.process_time()
    refuse()
    took = time.process_time() - started
    assert took < SECONDS, f"{took:.2f} s of processor time"
    tracemalloc.start()
    try:
        refuse()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BYTES, f"{peak} bytes"
