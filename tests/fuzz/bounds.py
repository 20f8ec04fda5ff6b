"""One input of a parser within its bound of time."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.fuzz.targets import Target, run

SECONDS_PER_INPUT = 1.0


def run_bounded(target: Target, data: bytes, folder: Path) -> bool:
    """Read one input as `run` does; more than a second of processor time is a TimeoutError."""
    with time_limit(SECONDS_PER_INPUT):
        return run(target, data, folder)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes more processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"over {seconds} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
