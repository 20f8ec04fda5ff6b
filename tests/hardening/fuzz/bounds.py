"""Inputs of a parser within their bound of time."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from tests.hardening.fuzz.targets import SECONDS_PER_INPUT, Bed


@contextlib.contextmanager
def hangs_are_noticed(bed: Bed, seconds: float = SECONDS_PER_INPUT) -> Iterator[None]:
    """Raise TimeoutError in an input of the bed that takes more processor time.

    One timer for all of them, which looks whether the bed is still at the input it was at before:
    to set it for every input would take longer than some parsers.
    """
    last = -1

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if bed.count == last:
            raise TimeoutError(f"an input took over {seconds} seconds")
        last = bed.count

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
