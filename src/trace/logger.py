"""The trace as text: structlog carries one stream of events, and two views write it down.

`DebugLog` writes one aligned line per event for people, `JsonLines` one JSON object per event for
programs. A view whose file takes no more is left out from then on; the run goes on.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from .events import STAGES
from .records import MARK, Event, Statistics, TensorInfo

Failure = Callable[[str], None]
Ranges = Sequence[range]

_COLUMNS = "{:>5} {:>5} {:>8} {:<23} {:>12}  {}"
_RESULT_WIDTH = 48
_LONGEST_LIST = 32
_LEGEND = (
    ("T", "new tokens"),
    ("S", "cached plus new tokens"),
    ("D", "model dimension"),
    ("H", "query heads"),
    ("K", "key/value heads"),
    ("G", "H/K"),
    ("h", "head dimension"),
    ("F", "feed-forward dimension"),
    ("V", "vocabulary"),
    ("L", "layers"),
)
_FIELDS = tuple(field.name for field in fields(Event) if field.name != "op")


class TraceLog:
    """Writes events to a log for people, to JSON lines, or to both.

    It closes the files when they take no more, and in `close`.

    Args:
        sizes: the model's sizes by letter; both files begin with them.
        debug_log: the log for people, or None.
        json_lines: the JSON lines, or None.
        layers: the layers to write in full. Without them the JSON lines hold all, and the log for
            people the first one.
        stages: the stages to write; all of them by default.
        on_failure: called with a line when a file takes no more.

    Raises:
        OSError: a file does not take its beginning.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        debug_log: TextIO | None = None,
        json_lines: TextIO | None = None,
        layers: Ranges | None = None,
        stages: Ranges | None = None,
        on_failure: Failure = lambda _line: None,
    ) -> None:
        self._stages = stages
        self._views: list[_View] = []
        if json_lines is not None:
            self._views.append(JsonLines(json_lines, sizes, layers, on_failure))
        if debug_log is not None:
            shown = (range(1),) if layers is None else layers
            self._views.append(DebugLog(debug_log, sizes, shown, on_failure))
        self._logger = structlog.wrap_logger(
            structlog.ReturnLogger(),
            processors=[*self._views, _end],
            wrapper_class=structlog.BoundLogger,
        )

    def write(self, event: Event) -> None:
        """Write an event where it is wanted."""
        if self.wants(event.stage, event.layer):
            self._logger.msg(event.op, **{name: getattr(event, name) for name in _FIELDS})

    def wants(self, stage: int, layer: int | None) -> bool:
        """Return whether a view shows events of a stage in a layer."""
        if self._stages is not None and not _holds(self._stages, stage):
            return False
        return any(view.wants(stage, layer) for view in self._views)

    @property
    def is_open(self) -> bool:
        """Whether a file still takes events."""
        return any(view.is_open for view in self._views)

    def close(self) -> None:
        """Close the files."""
        for view in self._views:
            view.close()


class _View:
    """A processor of structlog that writes each event to a file and hands it on."""

    def __init__(self, file: TextIO, layers: Ranges | None, on_failure: Failure) -> None:
        self._file: TextIO | None = file
        self._layers = layers
        self._on_failure = on_failure

    def wants(self, stage: int, layer: int | None) -> bool:
        """Return whether this view shows events of a stage in a layer."""
        if self._file is None:
            return False
        in_full = layer is None or self._layers is None or _holds(self._layers, layer)
        return in_full or (stage == 5 and self.sums_up)

    @property
    def is_open(self) -> bool:
        """Whether the file still takes events."""
        return self._file is not None

    @property
    def sums_up(self) -> bool:
        """Whether a layer that is not shown in full is still shown as one line."""
        return False

    def lines(self, event_dict: EventDict) -> str:
        """Return the text of an event, its last newline included."""
        raise NotImplementedError

    def __call__(self, _logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
        if self._file is not None and self.wants(event_dict["stage"], event_dict["layer"]):
            try:
                self._file.write(self.lines(dict(event_dict)))
                self._file.flush()
            except OSError as error:
                name = self._file.name
                self.close()
                self._on_failure(f"{name}: the trace ends here: {error.strerror}")
        return event_dict

    def close(self) -> None:
        """Close the file; what could not be written is given up."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _begin(self, text: str) -> None:
        """Write the beginning of the file."""
        assert self._file is not None
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            name = self._file.name
            self.close()
            raise OSError(error.errno, error.strerror, name) from None


class JsonLines(_View):
    """One JSON object per event, after one with the sizes of the model."""

    def __init__(
        self,
        file: TextIO,
        sizes: Mapping[str, int],
        layers: Ranges | None,
        on_failure: Failure,
    ) -> None:
        super().__init__(file, layers, on_failure)
        # Plain ASCII: a reader that takes U+2028 for the end of a line meets none.
        self._render = structlog.processors.JSONRenderer(default=_plain, allow_nan=False)
        self._begin(f"{self._rendered({'sizes': dict(sizes)})}\n")

    def lines(self, event_dict: EventDict) -> str:
        """Return the text of an event, its last newline included."""
        op = event_dict.pop("event")  # structlog's word for it
        return f"{self._rendered({'op': op, **event_dict})}\n"

    def _rendered(self, record: EventDict) -> str:
        return str(self._render(None, "", record))


class DebugLog(_View):
    """One aligned line per event under the heading of its stage."""

    def __init__(
        self, file: TextIO, sizes: Mapping[str, int], layers: Ranges, on_failure: Failure
    ) -> None:
        super().__init__(file, layers, on_failure)
        legend = ", ".join(
            f"{letter} = {sizes[letter]} {meaning}" if letter in sizes else f"{letter} {meaning}"
            for letter, meaning in _LEGEND
        )
        head = _COLUMNS.format("stage", "layer", "position", "op", "time", "result")
        self._begin(f"# {legend}\n{head:<{_width_before_inputs()}} <- inputs, arguments\n")

    @property
    def sums_up(self) -> bool:
        """Whether a layer that is not shown in full is still shown as one line."""
        return True

    def lines(self, event_dict: EventDict) -> str:
        """Return the text of an event, its last newline included."""
        op, layer = event_dict["event"], event_dict["layer"]
        in_full = layer is None or self._layers is None or _holds(self._layers, layer)
        if op != MARK:
            return f"{_line(event_dict)}\n"
        heading = f"{_heading(event_dict)}\n" if in_full else ""
        has_content = event_dict["inputs"] or event_dict["outputs"] or event_dict["details"]
        return heading + (f"{_line(event_dict)}\n" if has_content else "")


def _heading(event: EventDict) -> str:
    """Return the line that opens a stage."""
    stage = STAGES[event["stage"]]
    layer = "" if event["layer"] is None else f", layer {event['layer']}"
    return f"# {stage.number} {stage.name}{layer} ({stage.code})"


def _line(event: EventDict) -> str:
    """Return the line of an event."""
    seconds = event["seconds"]
    left = _COLUMNS.format(
        event["stage"],
        "-" if event["layer"] is None else event["layer"],
        "-" if event["position"] is None else event["position"],
        STAGES[event["stage"]].function if event["event"] == MARK else event["event"],
        "" if seconds is None else f"{seconds * 1e3:.3f} ms",
        ", ".join(tensor_text(x) for x in event["outputs"]),
    )
    right = [tensor_text(x) for x in event["inputs"]]
    text = repr if event["event"] == MARK else str  # an op's arguments are numbers and dtypes
    right += [f"{name} = {_value_text(value, text)}" for name, value in event["details"].items()]
    line = f"{left:<{_width_before_inputs()}} <- {', '.join(right)}" if right else left
    values = [x.statistics for x in event["outputs"] if x.statistics is not None]
    return "; ".join([line, *map(_statistics_text, values)]).rstrip()


def tensor_text(x: TensorInfo) -> str:
    """Return a tensor as `xq [T, H, h] = [22, 32, 128] bfloat16`, without letters if none fit."""
    letters = f" [{', '.join(x.letters)}] =" if x.letters else ""
    name = x.name if x.name.isprintable() else repr(x.name)
    return f"{name}{letters} [{', '.join(map(str, x.shape))}] {x.dtype}".lstrip()


def _value_text(value: Any, text: Callable[[Any], str]) -> str:
    """Return a value on one line; `repr` escapes all that cannot be shown on it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list) and len(value) > _LONGEST_LIST:
        return f"{value[:_LONGEST_LIST]!r} and {len(value) - _LONGEST_LIST} more"
    return text(value)


def _statistics_text(values: Statistics) -> str:
    first, last = (" ".join(f"{n:.4g}" for n in ends) for ends in (values.first, values.last))
    return (
        f"min {values.minimum:.4g} max {values.maximum:.4g} mean {values.mean:.4g} "
        f"rms {values.rms:.4g} first {first} last {last}"
    )


def _width_before_inputs() -> int:
    return len(_COLUMNS.format(*[""] * 6)) + _RESULT_WIDTH


def _holds(ranges: Ranges, number: int) -> bool:
    return any(number in numbers for numbers in ranges)


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a tensor's description."""
    assert isinstance(value, TensorInfo)
    return value.as_dict()


def _end(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> str:
    """End the chain: the views have written the event."""
    return str(event_dict["event"])
