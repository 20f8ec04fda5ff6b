"""The records of a trace: an event, the tensors it names, and how JSON holds them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, TypeAlias

import numpy as np

Details: TypeAlias = Mapping[str, Any]  # values that JSON knows
Letters: TypeAlias = tuple[str, ...]

MARK = "mark"  # the op of the event that opens a stage
LAYER = "layer"  # the op of the event that sums up a transformer block


@dataclass(frozen=True)
class TensorInfo:
    """What an event says of a tensor."""

    name: str  # empty where it has none
    shape: tuple[int, ...]
    letters: Letters  # of the shape; empty where none are known
    dtype: str
    id: int = (
        0  # a number that no other tensor of the trace has, from 1; a view has its own
    )
    # On request, of results: min, max, mean, rms, first and last, as JSON holds them; and
    # a copy of all elements, which the JSON lines leave out.
    statistics: Mapping[str, Any] | None = None
    values: np.ndarray[Any, Any] | None = field(default=None, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {k: v for k, v in vars(self).items() if k != "values" and v is not None}


@dataclass(frozen=True)
class Event:
    """One thing that happened in a stage."""

    # or `mark`, which opens a stage, or `layer`, which sums up a transformer block
    op: str
    stage: int
    name: str  # of the stage
    layer: int | None  # index of the transformer block, or None outside of one
    # How many passes the answer had before this one; None before the first.
    step: int | None
    position: int | None  # that of the first new token, or None before there is one
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    start: (
        float  # seconds from the beginning of the trace to that of the op, layer or stage
    )
    # What the op took without the tracing; None where nothing was measured.
    seconds: float | None
    bytes: int  # what the op read and wrote, each tensor once; 0 for a view
    operations: int  # additions, multiplications, divisions and exponentials on numbers
    # arguments that are no tensors, and what a stage without tensors has to say
    details: Details
    code: str  # the file and the line of the call

    @property
    def arguments(self) -> list[str]:
        """The details as `name = value`."""
        shown = {
            k: f"{v:g}" if isinstance(v, float) else v for k, v in self.details.items()
        }
        return [f"{k} = {v}" for k, v in shown.items()]


def json_value(value: Any) -> Any:
    """Return a value as JSON holds it: tuples as lists, records by field, what it lacks
    as text.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        return json_value(asdict(value))
    return str(value)
