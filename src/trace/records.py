"""The records of a trace: an event, the tensors it names, and how JSON holds them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, TypeAlias

Details: TypeAlias = Mapping[str, Any]  # values that JSON knows
Letters: TypeAlias = tuple[str, ...]

MARK = "mark"  # the op of the event that opens a stage
LAYER = "layer"  # the op of the event that sums up a transformer block


@dataclass(frozen=True)
class Statistics:
    """A few numbers about the elements of a tensor; a complex one counts as pairs of reals.

    Attributes:
        minimum, maximum, mean, rms: over all elements, computed in float64.
        first, last: the first and the last elements, in row-major order.
    """

    minimum: float
    maximum: float
    mean: float
    rms: float
    first: tuple[float, ...]
    last: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; it has no infinity and no NaN, which become texts."""
        return {
            "min": json_value(self.minimum),
            "max": json_value(self.maximum),
            "mean": json_value(self.mean),
            "rms": json_value(self.rms),
            "first": json_value(self.first),
            "last": json_value(self.last),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Statistics":
        """Read what `as_dict` returned."""
        return cls(
            minimum=float(record["min"]),
            maximum=float(record["max"]),
            mean=float(record["mean"]),
            rms=float(record["rms"]),
            first=tuple(map(float, record["first"])),
            last=tuple(map(float, record["last"])),
        )


@dataclass(frozen=True)
class TensorInfo:
    """What an event says of a tensor.

    Attributes:
        name: empty where it has none.
        shape: its sizes.
        letters: the same in letters; empty where none are known, or it has no dimensions.
        dtype: the name of its dtype.
        statistics: on request, of results.
    """

    name: str
    shape: tuple[int, ...]
    letters: Letters
    dtype: str
    statistics: Statistics | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        record: dict[str, Any] = {
            "name": self.name,
            "shape": list(self.shape),
            "letters": list(self.letters),
            "dtype": self.dtype,
        }
        if self.statistics is not None:
            record["statistics"] = self.statistics.as_dict()
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "TensorInfo":
        """Read what `as_dict` returned."""
        found = record.get("statistics")
        return cls(
            name=str(record["name"]),
            shape=tuple(int(n) for n in record["shape"]),
            letters=tuple(str(letter) for letter in record["letters"]),
            dtype=str(record["dtype"]),
            statistics=None if found is None else Statistics.from_dict(found),
        )


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
        time: seconds from the beginning of the trace to the event.
        seconds: what the op took, the tracing not counted; None where nothing was measured.
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
    time: float
    seconds: float | None
    details: Details
    code: str

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Event":
        """Read a record of the JSON lines."""
        return cls(
            op=str(record["op"]),
            stage=int(record["stage"]),
            name=str(record["name"]),
            layer=_optional_int(record["layer"]),
            step=_optional_int(record["step"]),
            position=_optional_int(record["position"]),
            inputs=tuple(map(TensorInfo.from_dict, record["inputs"])),
            outputs=tuple(map(TensorInfo.from_dict, record["outputs"])),
            time=float(record["time"]),
            seconds=None if record["seconds"] is None else float(record["seconds"]),
            details=dict(record["details"]),
            code=str(record["code"]),
        )


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


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)
