"""The records in a trace, events and tensor descriptions, and their JSON form."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from .events import Letters

Details: TypeAlias = Mapping[str, Any]  # all values are JSON-compatible

MARK = "mark"  # the op of the event that opens a stage
LAYER = "layer"  # the op of the event that summarizes a transformer block


@dataclass(frozen=True)
class TensorInfo:
    """The description of a tensor in an event."""

    name: str  # empty if the tensor has no name
    shape: tuple[int, ...]
    letters: Letters  # the shape as letters; empty if unknown
    dtype: str
    id: int = 0  # unique within the trace, starting at 1; a view has its own id
    # If requested, a result has statistics (min, max, mean, rms, first and last, as in
    # JSON), one row (its index, with None for the dimension of the row, its length and
    # its first elements, with a pair for a complex one), and a copy of all elements,
    # which the JSON form omits.
    statistics: Mapping[str, Any] | None = None
    row: Mapping[str, Any] | None = None
    values: np.ndarray[Any, Any] | None = field(default=None, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that the JSON form contains."""
        return {k: v for k, v in vars(self).items() if k != "values" and v is not None}


@dataclass(frozen=True)
class RowChoice:
    """The row of each result to show: the row of one position, in one head."""

    position: int | None  # of the token in the sequence; None for the last of each pass
    head: int = 0  # the query head, in a tensor that has heads


@dataclass(frozen=True)
class Event:
    """One event in a stage."""

    # The name of an op, `mark` (the beginning of a stage) or `layer` (a block summary).
    op: str
    stage: int
    name: str  # the name of the stage
    layer: int | None  # the index of the transformer block; None outside blocks
    # The index of the forward pass within the answer; None before the first pass.
    step: int | None
    position: int | None  # the position of the first new token, if known
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    # The beginning of the op, layer or stage, in seconds since the trace started.
    start: float
    # The duration, excluding tracing; None if it was not measured.
    seconds: float | None
    bytes: int  # bytes read and written, each tensor once; 0 for a view
    operations: int  # additions, multiplications, divisions and exponentials
    # Non-tensor arguments of an op, or additional data of a stage.
    details: Details
    code: str  # the file and line of the call

    @property
    def arguments(self) -> list[str]:
        """The details, formatted as `name = value`."""
        return [
            f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
            for name, value in self.details.items()
        ]


def json_value(value: Any) -> Any:
    """Convert a value to JSON-compatible types.

    Tuples become lists, dataclasses become dicts, and non-finite numbers and other types
    become strings.
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
