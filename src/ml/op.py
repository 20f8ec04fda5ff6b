"""`@op`: the one place where it is known that an op ran.

An op is a function from tensors to new tensors. While somebody observes, every call is described to
the observers by the op's own name, whatever name it is called by: a log, a profile or a diagram
needs no change to the ops. An op that runs inside another one is part of that one.
"""

import functools
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

from .. import trace
from .dtype import DType
from .errors import DTypeError, LlamaBoltsError, TensorMemoryError, TensorTypeError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an op.

    Attributes:
        op: Its name.
        arguments: By the names of its parameters, in their order; defaults are left out.
        results: The tensors that it made or changed.
        seconds: How long it took.
    """

    op: str
    arguments: Mapping[str, Any]
    results: tuple[Any, ...]
    seconds: float

    def inputs(self, number: int) -> list[Any]:
        """Return the tensors that went into one of the results.

        Of an argument that is a sequence with one tensor for each result, only its own counts.
        """
        found: list[Any] = []
        for value in self.arguments.values():
            tensors = [x for x in _items(value) if hasattr(x, "with_name")]
            one_each = isinstance(value, list | tuple) and len(tensors) == len(self.results) > 1
            found += tensors[number : number + 1] if one_each else tensors
        return found

    @property
    def scalars(self) -> dict[str, Any]:
        """The arguments that are single values, and C, the positions of a cache among them."""
        kinds = (bool, int, float, complex, DType)
        values = {name: x for name, x in self.arguments.items() if isinstance(x, kinds)}
        caches = [x for x in self.arguments.values() if hasattr(type(x), "capacity")]
        return values | ({"C": caches[0].capacity} if caches else {})


# Take a call, and return the names that its results are to have, or None.
Observer = Callable[[OpCall], "tuple[str, ...] | None"]

# All ops by name. `Tensor` finds those behind its operators and methods here.
OPS: dict[str, Callable[..., Any]] = {}

_observers: tuple[Observer, ...] = ()
_running = threading.local()
_signature = functools.cache(inspect.signature)


def subscribe(observer: Observer) -> None:
    """Let an observer be told of every op of the process from now on."""
    global _observers
    _observers = (*_observers, observer)


def unsubscribe(observer: Observer) -> None:
    """Stop telling an observer; one that never subscribed is not an error."""
    global _observers
    _observers = tuple(one for one in _observers if one != observer)


def op(
    function: Callable[P, R], changed: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = None
) -> Callable[P, R]:
    """Make a function an op; its annotations say which of its parameters are tensors.

    The op raises TensorTypeError for an argument that should be a tensor and is none, DTypeError
    for a block-quantized one where it takes none, and TensorMemoryError where NumPy gets no memory.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if not _observers:
                return function(*args, **kwargs)
            return cast(R, _observed(function, changed, args, kwargs))
        except (AttributeError, TypeError, MemoryError) as error:
            declared = _declared(function, error, args, kwargs)
            if declared is error:
                raise
            raise declared from error

    OPS[function.__name__] = run
    return run


def op_that_changes(
    changed: Callable[[Mapping[str, Any]], tuple[Any, ...]],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an op of a function that writes into what it is given and returns nothing.

    While somebody observes, `changed` gets its arguments by name, and returns what was written.
    """
    return lambda function: op(function, changed)


def _observed(function: Any, changed: Any, args: Any, kwargs: Any) -> Any:
    """Run an op, describe it to the observers, and name its results as they say."""
    if getattr(_running, "is_inside", False):
        return function(*args, **kwargs)
    _running.is_inside = True
    try:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        seconds = time.perf_counter() - start
        given = _signature(function).bind(*args, **kwargs).arguments
        if changed is not None:
            results = changed(given)
            given.pop("self", None)
        elif result is given.get("self"):  # a method gave back the tensor itself
            return result
        else:
            results = tuple(x for x in _items(result) if hasattr(x, "with_name"))
        if not results:
            return result
        call = OpCall(function.__name__, given, results, seconds)
        for observer in _observers:
            names = observer(call) or [x.name for x in results]
            named = zip(results, names, strict=True)
            results = tuple(x if x.name == new else x.with_name(new) for x, new in named)
        if changed is not None:
            return result
        return results if isinstance(result, tuple) else results[0]
    finally:
        _running.is_inside = False


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _declared(function: Any, error: Exception, args: Any, kwargs: Any) -> Exception:
    """Return the error of this package that says what is wrong with a call, or the same one."""
    if isinstance(error, LlamaBoltsError):
        return error
    name, signature = function.__name__, _signature(function)
    if isinstance(error, MemoryError):
        return TensorMemoryError(f"[{name}] memory: the system refused the allocation")
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return error  # Python's own, for a call without the arguments that it needs
    for label, value in given.items():
        kind = "Tensor" if label == "self" else str(signature.parameters[label].annotation)
        type_error = f"[{name}] {label} must be a {{}}: {type(value).__name__}"
        if "KeyValueCache" in kind and not hasattr(type(value), "capacity"):
            return TensorTypeError(type_error.format("KeyValueCache"))
        if "Tensor" not in kind or (value is None and "None" in kind):
            continue
        is_sequence = "Sequence" in kind
        if is_sequence and not isinstance(value, list | tuple):
            return TensorTypeError(type_error.format("sequence of Tensors"))
        for x in value if is_sequence else (value,):
            if x is None and "Tensor | None" in kind:
                continue
            if isinstance(x, complex | float) and ("complex" in kind or "float" in kind):
                continue
            if hasattr(x, "dequantize") and "QuantizedTensor" not in kind:
                refusal: DTypeError = x.refusal(name)
                return refusal
            if not hasattr(type(x), "with_name"):
                is_array = type(x).__name__ == "ndarray"
                hint = "; Tensor.from_numpy(array) makes a Tensor" if is_array else ""
                text = f"{label} must be a Tensor: {type(x).__name__}{hint}"
                return TensorTypeError(f"[{name}] {text}")
    return error


def _report(tracer: "trace.Tracer", call: OpCall) -> tuple[str, ...]:
    """Report each result of a call in one line; the first has all of the time."""
    begun, scalars = time.perf_counter(), call.scalars
    names = tuple(
        tracer.op(call.op, call.inputs(i), result, scalars, None if i else call.seconds)
        for i, result in enumerate(call.results)
    )
    trace.add_own_seconds(time.perf_counter() - begun)
    return names


def _report_to(tracer: "trace.Tracer | None") -> None:
    """Subscribe a tracer in place of the one before; None for nobody."""
    global _reporter
    unsubscribe(_reporter)
    if tracer is not None:
        _reporter = functools.partial(_report, tracer)
        subscribe(_reporter)


_reporter: Any = None
trace.add_reporter(_report_to)
