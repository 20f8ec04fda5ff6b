"""The trace: one stream of events that follows a prompt through the 21 stages.

The stages mark the one trace of the process, and while it is on it observes the ops. The
modules of this package that make, name and write events are not loaded by a run without a
trace.
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
_observer: Observer | None = None  # of the ops, while a trace is on
_own_seconds = 0.0  # that tracers and those who take their events have used


def mark(
    stage: int,
    layer: int | None = None,
    position: int | None = None,
    T: int | None = None,
    inputs: Mapping[str, "TensorLike"] = _NOTHING,
    outputs: Mapping[str, "TensorLike"] = _NOTHING,
    details: "Details" = _NOTHING,
) -> None:
    """Say that a stage begins; while no trace is on, this is one look at a variable.

    Args:
        stage: its number.
        layer: index of the transformer block that begins here.
        position: that of the first new token.
        T: how many new tokens there are.
        inputs, outputs: tensors of a stage whose work is not an op, by their names.
        details: what else there is to say: values that JSON knows, and dataclasses of
            them.
    """
    # No keyword-only parameters and no **details: they would cost more than the look.
    if _tracer is not None:
        begun = time.perf_counter()
        _tracer.mark(stage, layer, position, T, inputs, outputs, details)
        add_own_seconds(time.perf_counter() - begun)


def add_own_seconds(seconds: float) -> None:
    """Count what a trace itself took, for `clock`."""
    global _own_seconds
    _own_seconds += seconds


def clock() -> float:
    """Return `time.perf_counter()` without what traces took for themselves until now."""
    return time.perf_counter() - _own_seconds


def start(tracer: "Tracer") -> None:
    """Turn a trace on, for the whole process; one that was on before is turned off.

    Args:
        tracer: makes the events; its `close` is called when the trace is turned off.
    """
    global _tracer, _observer
    stop()
    _tracer = tracer
    _observer = functools.partial(_report, tracer)
    subscribe(_observer)


def stop() -> None:
    """Turn the trace off, if one is on."""
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
    """Report each result of an op to a tracer; return the names that it gives to the
    results.

    The first result has all of the time.
    """
    start = time.perf_counter()
    scalars = call.scalars
    names = tuple(
        tracer.op(call.op, call.inputs(i), result, scalars, None if i else call.seconds)
        for i, result in enumerate(call.results)
    )
    add_own_seconds(time.perf_counter() - start)
    return names
