"""Tracing: a stream of events that follows a prompt through the 21 stages.

A process has at most one trace. Each stage marks its beginning in the trace, which also
observes the ops. Without a trace, the modules that create and write events are not
loaded, and neither is `ml`, so that `--help` can read the table of stages without NumPy.
"""

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..ml.op import OpCall
    from .records import Details
    from .tracer import TensorLike
    from .tracer import Tracer as Tracer

__all__ = [
    "add_own_seconds",
    "clock",
    "follow",
    "is_on",
    "is_spelled_out",
    "mark",
    "start",
    "stop",
    "unfollow",
]

_NOTHING: Mapping[str, Any] = {}

_tracer: "Tracer | None" = None
# A function that receives the stage, layer, position and T of each mark.
Follower = Callable[[int, int | None, int | None, int | None], None]

_followers: tuple[Follower, ...] = ()
_spelling: tuple[Follower, ...] = ()  # followers that need attention in separate ops
_is_marked = False  # whether there is a trace or a follower
_lock = threading.Lock()  # held while the followers are replaced
_stop_observing: Callable[[], None] | None = None  # while a trace is on
_own_seconds = 0.0  # seconds spent in tracers and their consumers


def mark(
    stage: int,
    layer: int | None = None,
    position: int | None = None,
    T: int | None = None,
    inputs: Mapping[str, "TensorLike"] = _NOTHING,
    outputs: Mapping[str, "TensorLike"] = _NOTHING,
    details: "Details" = _NOTHING,
) -> None:
    """Mark the beginning of a stage for the trace and all followers, if there are any.

    Args:
        stage: The number of the stage.
        layer: The index of the transformer block that begins here.
        position: The position of the first new token.
        T: The number of new tokens.
        inputs, outputs: The tensors, by name, of a stage that does not consist of ops.
        details: Additional data: JSON-compatible values, or dataclasses that contain only
            such values.
    """
    # Without a trace, this call only tests a variable. Keyword-only parameters and
    # **details would cost more than the test.
    if not _is_marked:
        return
    for follower in _followers:
        follower(stage, layer, position, T)
    if _tracer is not None:
        start_time = time.perf_counter()
        _tracer.mark(stage, layer, position, T, inputs, outputs, details)
        add_own_seconds(time.perf_counter() - start_time)


def add_own_seconds(seconds: float) -> None:
    """Record time that tracing itself has taken, which `clock` subtracts."""
    global _own_seconds
    _own_seconds += seconds


def clock() -> float:
    """Return `time.perf_counter()` minus the time that tracing has taken so far."""
    return time.perf_counter() - _own_seconds


def follow(follower: Follower, spelled_out: bool = False) -> None:
    """Call a function at each mark in this process, before the trace receives the mark.

    Args:
        follower: Receives the stage, layer, position and T of `mark`.
        spelled_out: Whether attention must run as one op per stage.
    """
    with _lock:
        spelling = (*_spelling, follower) if spelled_out else _spelling
        _set_followers((*_followers, follower), spelling)


def unfollow(follower: Follower) -> None:
    """Stop calling a follower."""
    with _lock:
        remaining = tuple(each for each in _followers if each != follower)
        spelling = tuple(each for each in _spelling if each != follower)
        _set_followers(remaining, spelling)


def _set_followers(
    followers: tuple[Follower, ...], spelling: tuple[Follower, ...]
) -> None:
    global _followers, _spelling, _is_marked
    _followers = followers
    _spelling = spelling
    _is_marked = bool(followers) or _tracer is not None


def start(tracer: "Tracer") -> None:
    """Start a trace for the whole process, stopping the current trace if there is one.

    Args:
        tracer: Creates the events. Its `close` is called when the trace stops.
    """
    from ..ml.op import subscribe, unsubscribe  # only needed for a trace

    global _tracer, _stop_observing, _is_marked
    stop()
    _tracer = tracer
    _is_marked = True
    observer = functools.partial(_report, tracer)
    subscribe(observer)
    _stop_observing = functools.partial(unsubscribe, observer)


def stop() -> None:
    """Stop the trace, if one is on."""
    global _tracer, _stop_observing, _is_marked
    if _tracer is None or _stop_observing is None:
        return
    _stop_observing()
    tracer = _tracer
    _tracer = None
    _is_marked = bool(_followers)
    _stop_observing = None
    tracer.close()


def is_on() -> bool:
    """Return whether a trace is on."""
    return _tracer is not None


def is_spelled_out() -> bool:
    """Return whether a trace or a follower needs attention as one op per stage."""
    return _tracer is not None or bool(_spelling)


def _report(tracer: "Tracer", call: "OpCall") -> tuple[str, ...]:
    """Report each result of an op to a tracer, and return the names of the results.

    The duration of the op is reported with its first result.
    """
    start = time.perf_counter()
    scalars = call.scalars
    if call.changes:
        scalars |= {"changed": "; ".join(call.changes)}
    names = tuple(
        tracer.op(call.op, call.inputs(i), result, scalars, None if i else call.seconds)
        for i, result in enumerate(call.results)
    )
    add_own_seconds(time.perf_counter() - start)
    return names
