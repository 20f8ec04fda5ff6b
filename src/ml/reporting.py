"""Ops report themselves: while a trace is on, and only then, each public op is wrapped.

Off, the names of the package are the functions themselves, so that there is nothing to skip.
"""

import functools
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import trace
from . import ops
from .dtype import DType
from .quantized import Weight
from .tensor import Tensor

Function = Callable[..., Any]

# The methods of Tensor that a reader of the model sees as steps of their own.
REPORTED_METHODS = ("reshape", "transpose", "slice", "set_slice", "to")

_FUNCTIONS: dict[str, Function] = {name: getattr(ops, name) for name in ops.__all__}
# What an op without a result of its own has changed.
_CHANGED: dict[str, Callable[[dict[str, Any]], tuple[Tensor, ...]]] = {
    "set_slice": lambda given: (given["self"].slice(given["start"], given["stop"]),),
    "write_cache": lambda given: _FUNCTIONS["read_cache"](
        given["cache"], given["start_pos"], given["start_pos"] + given["xk"].shape[0]
    ),
}
_METHODS: dict[str, Function] = {name: Tensor.__dict__[name] for name in REPORTED_METHODS}


def report_ops_to(tracer: trace.Tracer | None) -> None:
    """Let every op of the library report to a tracer, or, with None, to nobody.

    The functions are those exported by `ml.ops`, under the names `ml.add` and `ml.ops.add`. An op
    that another op uses is part of that one and is not reported.

    Args:
        tracer: takes the reports, and says what a result is called.
    """
    report = None if tracer is None else _Reporter(tracer)
    for namespace in (sys.modules[__package__], ops):
        for name, function in _FUNCTIONS.items():
            setattr(namespace, name, function if report is None else report.wrapped(name, function))
    for name, method in _METHODS.items():
        setattr(Tensor, name, method if report is None else report.wrapped(name, method))


class _Reporter:
    """Wraps functions for one tracer."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._is_inside = False

    def wrapped(self, op: str, function: Function) -> Function:
        """Return a function that does the same and reports it."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def reporting(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return function(*args, **kwargs)
            self._is_inside = True
            try:
                started = time.perf_counter()
                result = function(*args, **kwargs)
                seconds = time.perf_counter() - started
                given = signature.bind(*args, **kwargs).arguments
                return self._report(op, given, result, seconds)
            finally:
                self._is_inside = False

        return reporting

    def _report(self, op: str, given: dict[str, Any], result: Any, seconds: float) -> Any:
        if op in _METHODS and result is given["self"]:
            return result  # nothing was done, as by `to` with the dtype that is there
        if op in _CHANGED:
            self._report_each(op, given, _CHANGED[op](given), seconds)
            return result
        if isinstance(result, tuple):
            return self._report_each(op, given, result, seconds)
        return self._report_each(op, given, (result,), seconds)[0]

    def _report_each(
        self, op: str, given: dict[str, Any], results: tuple[Tensor, ...], seconds: float
    ) -> tuple[Tensor, ...]:
        """Report each result in a line of its own, the first with all of the time.

        Of an argument that is a sequence with one tensor for each result, a line shows its own.
        """
        named = []
        for number, result in enumerate(results):
            tensors = _inputs(op, given, number, len(results))
            name = self._tracer.op(op, tensors, result, _scalars(given), 0.0 if number else seconds)
            named.append(result if name == result.name else result.with_name(name))
        return tuple(named)


def _inputs(op: str, given: dict[str, Any], number: int, results: int) -> list[Weight]:
    """Return the tensors that went into one of an op's results."""
    tensors: list[Weight] = []
    for name, value in given.items():
        if op == "set_slice" and name == "self":
            continue
        found = _tensors(value)
        one_each = not isinstance(value, Weight) and len(found) == results > 1
        tensors += found[number : number + 1] if one_each else found
    return tensors


def _tensors(value: Any) -> Sequence[Weight]:
    """Return the tensors of an argument: itself, or those of a sequence."""
    if isinstance(value, Weight):
        return (value,)
    if isinstance(value, list | tuple):
        return [x for x in value if isinstance(x, Weight)]
    return ()


def _scalars(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are single values."""
    kinds = (bool, int, float, complex, DType)
    return {name: value for name, value in given.items() if isinstance(value, kinds)}
