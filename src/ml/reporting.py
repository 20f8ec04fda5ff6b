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
from .tensor import Tensor

Function = Callable[..., Any]

# The methods of Tensor that a reader of the model sees as steps of their own.
REPORTED_METHODS = ("reshape", "transpose", "slice", "set_slice", "to")

_FUNCTIONS: dict[str, Function] = {name: getattr(ops, name) for name in ops.__all__}
_METHODS: dict[str, Function] = {name: Tensor.__dict__[name] for name in REPORTED_METHODS}


def report_ops_to(tracer: trace.Tracer | None) -> None:
    """Lets every op of the library report to a tracer, or, with None, to nobody.

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
        """Returns a function that does the same and reports it."""
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
        tensors = [x for value in given.values() for x in _tensors(value)]
        if op == "set_slice":
            changed = given["self"].slice(given["start"], given["stop"])
            self._tracer.op(op, tensors[1:], changed, _scalars(given), seconds)
            return result
        if op in _METHODS and result is given["self"]:
            return result  # nothing was done, as by `to` with the dtype that is there
        name = self._tracer.op(op, tensors, result, _scalars(given), seconds)
        return result if name == result.name else result.with_name(name)


def _tensors(value: Any) -> Sequence[Tensor]:
    """Returns the tensors of an argument: itself, or those of a sequence."""
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, list | tuple):
        return [x for x in value if isinstance(x, Tensor)]
    return ()


def _scalars(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that are single values."""
    kinds = (bool, int, float, complex, DType)
    return {name: value for name, value in given.items() if isinstance(value, kinds)}
