"""The trace: one stream of events that follows a prompt through the 21 stages.

The process has at most one trace. Stages mark their beginnings in it, and it observes the
ops. A run without a trace does not load the modules that create, name and write events.
"""

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..ml.op import Observer, OpCall, subscribe, unsubscribe

if TYPE_CHECKING:
    from .records import Details
    from .tracer import TensorLike
    from .tracer import Tracer as Tracer

__all__ = ["add_own_seconds", "clock", "is_on", "mark", "start", "stop"]

_NOTHING: Mapping[str, Any] = {}

_tracer: "Tracer | None" = None
_observer: Observer | None = None  # the observer of the ops while a trace is on
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
    """Mark the beginning of a stage; without a trace, this only tests a variable.

    Args:
        stage: The number of the stage.
        layer: The index of the transformer block that begins here.
        position: The position of the first new token.
        T: The number of new tokens.
        inputs, outputs: Tensors of a stage that is not an op, by their names.
        details: Further facts: values that JSON can represent, and dataclasses of them.
    """
    # Keyword-only parameters and **details would cost more than the test.
    if _tracer is not None:
        start_time = time.perf_counter()
        _tracer.mark(stage, layer, position, T, inputs, outputs, details)
        add_own_seconds(time.perf_counter() - start_time)


def add_own_seconds(seconds: float) -> None:
    """Add the time of tracing itself, which `clock` subtracts."""
    global _own_seconds
    _own_seconds += seconds


def clock() -> float:
    """Return `time.perf_counter()` without the time of tracing until now."""
    return time.perf_counter() - _own_seconds


def start(tracer: "Tracer") -> None:
    """Turn a trace on for the whole process, after turning off an earlier one.

    Args:
        tracer: Creates the events. Its `close` is called when the trace is turned off.
    """
    global _tracer, _observer
    stop()
    _tracer = tracer
    _observer = functools.partial(_report, tracer)
    subscribe(_observer)


def stop() -> None:
    """Turn the trace off, if it is on."""
    global _tracer, _observer
    if _tracer is None or _observer is None:
        return
    unsubscribe(_observer)
    tracer = _tracer
    _tracer = None
    _observer = None
    tracer.close()


def is_on() -> bool:
    """Return whether a trace is on."""
    return _tracer is not None


def _report(tracer: "Tracer", call: OpCall) -> tuple[str, ...]:
    """Report each result of an op to a tracer; return the names of the results.

    The first result carries the time of the op.
    """
    start = time.perf_counter()
    scalars = call.scalars
    names = tuple(
        tracer.op(call.op, call.inputs(i), result, scalars, None if i else call.seconds)
        for i, result in enumerate(call.results)
    )
    add_own_seconds(time.perf_counter() - start)
    return names
