"""The `@op` decorator, which reports op calls to observers and validates operand types.

An op is a function that takes tensors and returns new tensors. While an observer is
subscribed, it receives every op call, so logs, profiles and diagrams do not require any
changes to the ops. A changer may replace the results of ops, before observers receive
them. Ops called by another op are not reported separately.
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
    """Base class of op operands: tensors and the key/value cache.

    Attributes:
        is_tensor: Whether traces show the operand as an input or a result of an op.
        array_hint: A hint appended to the error message if a NumPy array is passed
            instead of this operand.
    """

    __slots__ = ()

    is_tensor: ClassVar[bool] = False
    array_hint: ClassVar[str] = ""

    def traced_sizes(self) -> dict[str, int]:
        """Return the sizes that traces show next to an op's arguments, by letter."""
        return {}

    def refusal(self, op: str) -> TensorError | None:
        """Return an op's error for this operand type, or None for the default error."""
        del op
        return None


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op call.

    Attributes:
        op: The op's name.
        arguments: The passed arguments by parameter name, in parameter order.
        results: The tensors that the op returned or modified.
        seconds: The duration of the call.
        changes: Descriptions of the changes that changers made to the results.
    """

    op: str
    arguments: Mapping[str, Any]
    results: tuple[Any, ...]
    seconds: float
    changes: tuple[str, ...] = ()

    def inputs(self, number: int) -> list[Any]:
        """Return the input tensors of result `number`.

        If an argument is a sequence with one tensor per result, only the tensor at that
        position counts as an input.
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
        """The scalar arguments, and the capacity C if a cache is an argument."""
        kinds = (bool, int, float, complex, DType)
        values = {name: x for name, x in self.arguments.items() if isinstance(x, kinds)}
        for value in self.arguments.values():
            if isinstance(value, Operand):
                values |= value.traced_sizes()
        return values


# A function that receives an op call and returns names for its results, or None.
Observer = Callable[[OpCall], "tuple[str, ...] | None"]

# The result of an op after a changer has replaced tensors, and texts about the changes.
Changed = tuple[Any, tuple[str, ...]]
# A function that receives an op's name and its result, a tensor or a tuple of tensors. It
# returns None to keep the result.
Changer = Callable[[str, Any], Changed | None]

# All ops by name. Tensor operators and methods look up their ops here.
OPS: dict[str, Callable[..., Any]] = {}

_observers: tuple[Observer, ...] = ()
_changers: tuple[Changer, ...] = ()
_is_observed = False  # whether there are observers or changers
_lock = threading.Lock()  # held while these tuples are replaced


class _Running(threading.local):
    """Whether an op runs in a thread."""

    is_inside = False


_running = _Running()
_signature = functools.cache(inspect.signature)


def subscribe(observer: Observer) -> None:
    """Call `observer` after every op in this process."""
    with _lock:
        _set_listeners((*_observers, observer), _changers)


def unsubscribe(observer: Observer) -> None:
    """Stop calling `observer`. Unknown observers are ignored."""
    with _lock:
        remaining = tuple(each for each in _observers if each != observer)
        _set_listeners(remaining, _changers)


def subscribe_changer(changer: Changer) -> None:
    """Call `changer` after every op in this process, before the observers.

    The caller and the observers of the op receive the results that the changer returns.
    Ops that modify their arguments cannot be changed.
    """
    with _lock:
        _set_listeners(_observers, (*_changers, changer))


def unsubscribe_changer(changer: Changer) -> None:
    """Stop calling `changer`. Unknown changers are ignored."""
    with _lock:
        remaining = tuple(each for each in _changers if each != changer)
        _set_listeners(_observers, remaining)


def _set_listeners(
    observers: tuple[Observer, ...], changers: tuple[Changer, ...]
) -> None:
    global _observers, _changers, _is_observed
    _observers = observers
    _changers = changers
    _is_observed = bool(observers or changers)


def op(
    function: Callable[P, R],
    changed: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = None,
) -> Callable[P, R]:
    """Turn a function into an op; its annotations declare which parameters are tensors.

    The op raises TensorTypeError if a tensor parameter receives another type, DTypeError
    if it receives a block-quantized tensor that the op does not support, and
    TensorMemoryError if an allocation fails in NumPy.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if not _is_observed:
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
    """Turn a function that modifies its arguments and returns None into an op.

    While an observer is subscribed, `changed` receives the arguments by name and returns
    the modified tensors.
    """
    return lambda function: op(function, changed)


def _run_observed(function: Any, changed: Any, args: Any, kwargs: Any) -> Any:
    """Run an op, change its results, report the call, and apply the observers' names."""
    if _running.is_inside:
        return function(*args, **kwargs)
    _running.is_inside = True
    try:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        seconds = time.perf_counter() - start
        changes: tuple[str, ...] = ()
        # A method that returns `self` has no new result.
        if _changers and changed is None and not (args and result is args[0]):
            for changer in _changers:
                replaced = changer(function.__name__, result)
                if replaced is not None:
                    result = replaced[0]
                    changes += replaced[1]
        if not _observers:
            return result
        arguments = _signature(function).bind(*args, **kwargs).arguments
        if changed is not None:
            results = changed(arguments)
            arguments.pop("self", None)
        elif result is arguments.get("self"):  # the method returned `self` unchanged
            return result
        else:
            results = tuple(_tensors(result))
        if not results:
            return result
        call = OpCall(function.__name__, arguments, results, seconds, changes)
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
    """Return the tensors in an argument or a result."""
    return [x for x in _items(value) if isinstance(x, Operand) and x.is_tensor]


@dataclass(frozen=True, slots=True)
class _Annotation:
    """The types that an op parameter's annotation allows."""

    # Error messages mention only the first operand type.
    operands: tuple[type[Operand], ...]
    others: tuple[type, ...]
    is_sequence: bool

    def error(self, op: str, label: str, value: Any) -> TensorError | None:
        """Return the error for an argument of the wrong type, or None if it is valid."""
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


# Annotations accept narrower numbers, such as an int for a float, as in type checkers.
_NUMBERS: dict[Any, type] = {
    complex: numbers.Complex,
    float: numbers.Real,
    int: numbers.Integral,
}


@functools.cache
def _annotations(function: Any) -> dict[str, _Annotation]:
    """Return the annotations that include an operand type, by parameter name.

    Annotations are resolved when an op fails for the first time, because string
    annotations may refer to names that are not defined yet when the op is created.
    """
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # the name is imported only for type checkers
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
    """Return this package's exception for a failed op call, or the original exception."""
    if isinstance(error, LlamaBoltsError):
        return error
    name = function.__name__
    if isinstance(error, MemoryError):
        return TensorMemoryError(f"[{name}] memory: the system refused the allocation")
    try:
        arguments = _signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return error  # Python's error about missing or unexpected arguments
    annotations = _annotations(function)
    errors = (
        annotations[label].error(name, label, value)
        for label, value in arguments.items()
        if label in annotations
    )
    return next(filter(None, errors), error)
