"""`@op`: the only place that records that an op ran.

An op is a function from tensors to new tensors. While an observer is subscribed, every
call is described to it under the op's own name, so a log, a profile or a diagram needs no
change to the ops. An op that runs inside another op counts as a part of it.
"""

import functools
import inspect
import numbers
import threading
import time
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import numpy as np

from .dtype import DType
from .errors import LlamaBoltsError, TensorError, TensorMemoryError, TensorTypeError

P = ParamSpec("P")
R = TypeVar("R")


class Operand:
    """Base class of the operands of ops: the tensors and the key/value cache.

    Attributes:
        is_tensor: Whether a trace shows it as an input or a result of an op.
        array_hint: A hint in the error of an op for an argument that is a NumPy array.
    """

    __slots__ = ()

    is_tensor: ClassVar[bool] = False
    array_hint: ClassVar[str] = ""

    def traced_sizes(self) -> dict[str, int]:
        """Return the sizes that a trace shows among the arguments of an op, by letter."""
        return {}

    def refusal(self, op: str) -> TensorError | None:
        """Return an op's error for this type of tensor, or None for the usual error."""
        del op
        return None


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an op.

    Attributes:
        op: Its name.
        arguments: The arguments by parameter, in their order, without defaults.
        results: The tensors that it returned or changed.
        seconds: Its duration.
    """

    op: str
    arguments: Mapping[str, Any]
    results: tuple[Any, ...]
    seconds: float

    def inputs(self, number: int) -> list[Any]:
        """Return the input tensors of one of the results.

        An argument that is a sequence with one tensor for each result contributes only
        the tensor of that result.
        """
        inputs: list[Any] = []
        for value in self.arguments.values():
            tensors = _tensors(value)
            is_per_result = (
                isinstance(value, list | tuple) and len(tensors) == len(self.results) > 1
            )
            inputs += tensors[number : number + 1] if is_per_result else tensors
        return inputs

    @property
    def scalars(self) -> dict[str, Any]:
        """The arguments that are single values, and the size C of a cache argument."""
        kinds = (bool, int, float, complex, DType)
        values = {name: x for name, x in self.arguments.items() if isinstance(x, kinds)}
        for value in self.arguments.values():
            if isinstance(value, Operand):
                values |= value.traced_sizes()
        return values


# Receives a call, and returns the names for its results, or None.
Observer = Callable[[OpCall], "tuple[str, ...] | None"]

# All ops by name. `Tensor` looks up the ops of its operators and methods here.
OPS: dict[str, Callable[..., Any]] = {}

_observers: tuple[Observer, ...] = ()
_running = threading.local()
_signature = functools.cache(inspect.signature)


def subscribe(observer: Observer) -> None:
    """Call `observer` after every op in this process."""
    global _observers
    _observers = (*_observers, observer)


def unsubscribe(observer: Observer) -> None:
    """Stop calling an observer; an unknown observer is not an error."""
    global _observers
    _observers = tuple(each for each in _observers if each != observer)


def op(
    function: Callable[P, R],
    changed: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = None,
) -> Callable[P, R]:
    """Make a function an op; its annotations declare which parameters are tensors.

    The op raises TensorTypeError for a non-tensor argument of such a parameter,
    DTypeError for a block-quantized one that it does not support, and TensorMemoryError
    if NumPy gets no memory.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if not _observers:
                return function(*args, **kwargs)
            return cast(R, _run_observed(function, changed, args, kwargs))
        except (AttributeError, TypeError, MemoryError) as error:
            declared = _as_declared_error(function, error, args, kwargs)
            if declared is error:
                raise
            raise declared from error

    OPS[function.__name__] = run
    return run


def op_that_changes(
    changed: Callable[[Mapping[str, Any]], tuple[Any, ...]],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an op of a function that writes into its arguments and returns nothing.

    While an observer is subscribed, `changed` receives the arguments by name and returns
    the written tensors.
    """
    return lambda function: op(function, changed)


def _run_observed(function: Any, changed: Any, args: Any, kwargs: Any) -> Any:
    """Run an op, describe it to the observers, and name its results as they ask."""
    if getattr(_running, "is_inside", False):
        return function(*args, **kwargs)
    _running.is_inside = True
    try:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        seconds = time.perf_counter() - start
        arguments = _signature(function).bind(*args, **kwargs).arguments
        if changed is not None:
            results = changed(arguments)
            arguments.pop("self", None)
        elif result is arguments.get("self"):  # a method returned the tensor itself
            return result
        else:
            results = tuple(_tensors(result))
        if not results:
            return result
        call = OpCall(function.__name__, arguments, results, seconds)
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


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of an argument or of a result."""
    return [x for x in _items(value) if isinstance(x, Operand) and x.is_tensor]


@dataclass(frozen=True, slots=True)
class _Annotation:
    """The types in the annotation of an op's parameter."""

    # The first type is the parameter's type in errors.
    operands: tuple[type[Operand], ...]
    others: tuple[type, ...]
    is_sequence: bool

    def error(self, op: str, label: str, value: Any) -> TensorError | None:
        """Return the error of an argument of a wrong type, or None."""
        if isinstance(value, self.others):
            return None
        expected = self.operands[0]
        kind = type(value).__name__
        if self.is_sequence and not isinstance(value, list | tuple):
            name = f"sequence of {expected.__name__}s"
            return TensorTypeError(f"[{op}] {label} must be a {name}: {kind}")
        for x in value if self.is_sequence else (value,):
            if isinstance(x, (*self.operands, *self.others)):
                continue
            if (
                isinstance(x, Operand)
                and expected.is_tensor
                and (refusal := x.refusal(op))
            ):
                return refusal
            hint = expected.array_hint if isinstance(x, np.ndarray) else ""
            text = f"{label} must be a {expected.__name__}: {type(x).__name__}{hint}"
            return TensorTypeError(f"[{op}] {text}")
        return None


# A number may be of a narrower type than its annotation, as in type checkers.
_NUMBERS: dict[Any, type] = {
    complex: numbers.Complex,
    float: numbers.Real,
    int: numbers.Integral,
}


@functools.cache
def _annotations(function: Any) -> dict[str, _Annotation]:
    """Return the annotations with a type of operands, by parameter.

    They are resolved at the first error of an op, because names in string annotations do
    not exist yet while ops are defined.
    """
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # the name exists only for type checkers
        return {}
    annotations = {}
    for label, hint in hints.items():
        members: list[Any] = []
        is_sequence = False
        for member in _union_members(hint):
            if typing.get_origin(member) is Sequence:
                is_sequence = True
                members += _union_members(*typing.get_args(member))
            else:
                members.append(_NUMBERS.get(member, member))
        classes = [x for x in members if isinstance(x, type)]
        operands = tuple(x for x in classes if issubclass(x, Operand))
        others = tuple(x for x in classes if not issubclass(x, Operand))
        if operands and label != "return":
            annotations[label] = _Annotation(operands, others, is_sequence)
    return annotations


def _union_members(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def _as_declared_error(
    function: Any, error: Exception, args: Any, kwargs: Any
) -> Exception:
    """Return this package's error for a failed call, or the original error."""
    if isinstance(error, LlamaBoltsError):
        return error
    name = function.__name__
    if isinstance(error, MemoryError):
        return TensorMemoryError(f"[{name}] memory: the system refused the allocation")
    try:
        arguments = _signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return error  # Python's own error for missing arguments
    annotations = _annotations(function)
    errors = (
        annotations[label].error(name, label, value)
        for label, value in arguments.items()
        if label in annotations
    )
    return next(filter(None, errors), error)
