"""JSON lines back into events."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .records import Event


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
        path: the file.

    Raises:
        OSError: the file cannot be read.
        TraceFormatError: a line is not an event; the text names the file and the line.
    """
    sizes: dict[str, int] = {}
    run: dict[str, str] = {}
    events = []
    for number, record in _records(path):
        try:
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


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise TraceFormatError(f"{path}: line {number}: expected JSON: {error}") from None
            if not isinstance(record, dict):
                kind = type(record).__name__
                raise TraceFormatError(f"{path}: line {number}: expected an object, got {kind}")
            yield number, record
