"""The records of a trace: an event, the tensors it names, and how JSON holds them."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Details: TypeAlias = Mapping[str, Any]  # values that JSON knows
Letters: TypeAlias = tuple[str, ...]

MARK = "mark"  # the op of the event that opens a stage
LAYER = "layer"  # the op of the event that sums up a transformer block


@dataclass(frozen=True)
class TensorInfo:
    """What an event says of a tensor.

    Attributes:
        name: empty where it has none.
        shape: its sizes.
        letters: the same in letters; empty where none are known, or it has no dimensions.
        dtype: the name of its dtype.
        id: A number that no other tensor of the trace has, from 1; a view has its own.
        statistics: On request, of results: min, max, mean, rms, first and last, as JSON holds them.
        values: On request, of results: a copy of all elements, which the JSON lines leave out.
    """

    name: str
    shape: tuple[int, ...]
    letters: Letters
    dtype: str
    id: int = 0
    statistics: Mapping[str, Any] | None = None
    values: np.ndarray[Any, Any] | None = field(default=None, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        record = {name: json_value(value) for name, value in vars(self).items()}
        return {k: v for k, v in record.items() if k != "values" and v is not None}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "TensorInfo":
        """Read what `as_dict` returned."""
        tuples = {name: tuple(record[name]) for name in ("shape", "letters")}
        return cls(**{**record, **tuples})


@dataclass(frozen=True)
class Event:
    """One thing that happened in a stage.

    Attributes:
        op: the op; `mark` for the event that opens a stage, `layer` for the one that sums up a
            transformer block.
        stage: its number.
        name: its name.
        layer: index of the transformer block, or None outside of one.
        step: how many passes through the network the answer had before this one; None before the
            first.
        position: that of the first new token, or None before there is one.
        inputs, outputs: the tensors that were read and made.
        start: Seconds from the beginning of the trace to that of the op, of the layer, or of the
            stage that is marked.
        seconds: What the op took, the tracing not counted; None where nothing was measured.
        bytes: What the op read and wrote, each tensor once; 0 for a view.
        operations: Additions, multiplications, divisions and exponentials on numbers.
        details: arguments that are no tensors, and what a stage without tensors has to say.
        code: the file and the line of the call.
    """

    op: str
    stage: int
    name: str
    layer: int | None
    step: int | None
    position: int | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    start: float
    seconds: float | None
    bytes: int
    operations: int
    details: Details
    code: str

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Event":
        """Read a record of the JSON lines."""
        read, made = (
            tuple(map(TensorInfo.from_dict, record[name])) for name in ("inputs", "outputs")
        )
        return cls(**{**record, "inputs": read, "outputs": made})


def json_value(value: Any) -> Any:
    """Return a value as JSON holds it: tuples as lists, records by field, infinities as texts.

    What JSON does not know, such as a dtype, becomes its text.
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


class TraceFormatError(ValueError):
    """A line of a trace that is not an event."""


@dataclass(frozen=True)
class RecordedTrace:
    """What `--trace-json` wrote.

    Attributes:
        sizes: the model's sizes by letter.
        run: facts about the run.
        events: in order.
    """

    sizes: Mapping[str, int]
    run: Mapping[str, str]
    events: tuple[Event, ...]


def read_trace(path: Path) -> RecordedTrace:
    """Read JSON lines.

    Args:
        path: The file.

    Raises:
        OSError: The file cannot be read.
        TraceFormatError: A line is not an event; the text names the file and the line.
    """
    sizes: dict[str, int] = {}
    run: dict[str, str] = {}
    events = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                if "sizes" in record:
                    sizes = {str(letter): int(size) for letter, size in record["sizes"].items()}
                    run = {str(name): str(value) for name, value in record["run"].items()}
                else:
                    events.append(Event.from_dict(record))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise TraceFormatError(
                    f"{path}: line {number}: expected an event, got {error!r}"
                ) from None
    return RecordedTrace(sizes, run, tuple(events))
