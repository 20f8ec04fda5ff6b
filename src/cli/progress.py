"""How far a long prompt has been read or weights quantized, and how long the rest takes."""

import time

from ..inference import Progress
from ..model import QuantizationProgress
from .console import Console

# What is read in less time than this needs no line.
_WORTH_SECONDS = 1.0


def reading_progress(console: Console) -> Progress | None:
    """Return what an engine calls while it reads a prompt, or None where nothing can be shown.

    It keeps one line of the terminal up to date and takes it away at the end. Where a prompt may
    not be read to its end, call `console.clear_progress` after it.

    Args:
        console: the streams of this run.
    """
    return _timed(console, "reading the prompt", "tokens")


def quantizing_progress(console: Console) -> QuantizationProgress | None:
    """Return what is called while weights are quantized; as `reading_progress`."""
    return _timed(console, "quantizing the weights", "matrices")


def checking_progress(console: Console) -> Progress | None:
    """Return what is called while weights are checked; as `reading_progress`."""
    return _timed(console, "checking the weights", "bytes")


def _timed(console: Console, work: str, units: str) -> Progress | None:
    if not console.can_show_progress:
        return None
    started = 0.0
    first = -1

    def show(done: int, total: int) -> None:
        nonlocal started, first
        now = time.perf_counter()
        if first < 0:
            started, first = now, done
            return
        if done == total:
            console.clear_progress()
            return
        left = (now - started) / (done - first) * (total - done)
        if now - started + left >= _WORTH_SECONDS:
            console.show_progress(
                f"{work}: {done} of {total} {units}, {readable_seconds(left)} left"
            )

    return show


def readable_seconds(seconds: float) -> str:
    """Write a time for people: `8 s`, `2 min 05 s`, `1 h 02 min`."""
    whole = max(1, round(seconds))
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
