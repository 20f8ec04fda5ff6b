"""The records of a trace: events and tensors, and their form in JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, TypeAlias

import numpy as np

Details: TypeAlias = Mapping[str, Any]  # values that JSON can represent
Letters: TypeAlias = tuple[str, ...]

MARK = "mark"  # the op of the event that opens a stage
LAYER = "layer"  # the op of the event that summarizes a transformer block


@dataclass(frozen=True)
class TensorInfo:
    """The description of a tensor in an event."""

    name: str  # empty if it has no name
    shape: tuple[int, ...]
    letters: Letters  # of the shape; empty if they are unknown
    dtype: str
    id: int = 0  # unique within the trace, from 1; a view has a separate id
    # For results, if requested: min, max, mean, rms, first and last as in JSON; and a
    # copy of all elements, which the JSON lines omit.
    statistics: Mapping[str, Any] | None = None
    values: np.ndarray[Any, Any] | None = field(default=None, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {k: v for k, v in vars(self).items() if k != "values" and v is not None}


@dataclass(frozen=True)
class Event:
    """One event of a stage."""

    # An op, `mark` (the beginning of a stage) or `layer` (a summary of a block).
    op: str
    stage: int
    name: str  # of the stage
    layer: int | None  # the index of the transformer block; None outside of blocks
    # The number of earlier passes of the answer; None before the first pass.
    step: int | None
    position: int | None  # the position of the first new token, if any
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    # Seconds from the beginning of the trace to the beginning of the op, layer or stage.
    start: float
    # The duration without tracing; None if it was not measured.
    seconds: float | None
    bytes: int  # bytes read and written, each tensor once; 0 for a view
    operations: int  # additions, multiplications, divisions and exponentials
    # Non-tensor arguments and details.
    details: Details
    code: str  # the file and the line of the call

    @property
    def arguments(self) -> list[str]:
        """The details as `name = value`."""
        return [
            f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
            for name, value in self.details.items()
        ]


def json_value(value: Any) -> Any:
    """Return a value in the types of JSON.

    Tuples become lists, records become objects, and other types become text.
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
