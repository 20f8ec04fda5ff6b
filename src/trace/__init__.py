"""The trace: one stream of events that follows a prompt through the 21 stages.

The stages mark the one trace of the process, and the ops report to it while it is on. What makes,
names and writes events is in the modules beside this one: a run without a trace loads none.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import Details
    from .tracer import TensorLike
    from .tracer import Tracer as Tracer

__all__ = ["add_own_seconds", "add_reporter", "clock", "is_on", "mark", "start", "stop"]

Reporter = Callable[["Tracer | None"], None]

_NOTHING: Mapping[str, Any] = {}

_tracer: "Tracer | None" = None
_reporters: list[Reporter] = []
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
        details: what else there is to say: values that JSON knows, and dataclasses of them.
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
    global _tracer
    stop()
    _tracer = tracer
    for reporter in _reporters:
        reporter(tracer)


def stop() -> None:
    """Turn the trace off, if one is on."""
    global _tracer
    if _tracer is None:
        return
    tracer, _tracer = _tracer, None
    for reporter in _reporters:
        reporter(None)
    tracer.close()


def is_on() -> bool:
    """Return whether a trace is on."""
    return _tracer is not None


def add_reporter(reporter: Reporter) -> None:
    """Add a source of op events.

    Args:
        reporter: called with the tracer when a trace is turned on, and with None when it is off.
    """
    _reporters.append(reporter)
