"""The data for the diagrams: the events in a traced run, by stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..trace.events import size_of
from ..trace.records import LAYER, MARK, Event, TensorInfo

_EVERY_PASS = (3, 20, 21)
_WITH_VALUES = (4, 6, 8, 10, 13, 17)


@dataclass
class Recorder:
    """Records the events that the diagrams need, for an answer of any length.

    From the first pass, these are the events in the first layer and outside the layers.
    From later passes, only the events for the loop, sampling and text output are needed.
    """

    events: list[Event] = field(default_factory=list)  # the recorded events, in order

    def write(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)

    def wants(self, stage: int, layer: int | None, step: int | None) -> bool:
        """Return whether events with this stage, layer and step are needed."""
        return stage in _EVERY_PASS if step else layer in (None, 0)

    def wants_values(self, stage: int, layer: int | None, step: int | None) -> bool:
        """Return whether a diagram shows the elements of a stage's results."""
        return stage in _WITH_VALUES and not step and self.wants(stage, layer, step)


@dataclass(frozen=True)
class Beside:
    """Another model, whose sizes are shown next to those of the run."""

    name: str  # a short name
    title: str  # the full name
    sizes: Mapping[str, int]  # the sizes by letter, including T and S

    def shape(self, x: TensorInfo) -> tuple[int, ...]:
        """Return a tensor's shape in the other model, or () if it has no letters."""
        sizes = (size_of(letter, self.sizes) for letter in x.letters)
        return tuple(size for size in sizes if size is not None)


@dataclass(frozen=True)
class TracedRun:
    """The data of the run that the diagrams show."""

    model: str  # the name of the model
    sizes: Mapping[str, int]  # the model's sizes by letter
    events: Sequence[Event]  # the events for one answer, in order
    beside: Beside | None = None

    def first(self, stage: int) -> list[Event]:
        """Return a stage's events in the first pass and first layer, except its mark."""
        events = [e for e in self.events if e.stage == stage and e.layer in (None, 0)]
        marks = [index for index, event in enumerate(events) if event.op == MARK]
        return [
            event
            for event in events[: marks[1] if marks[1:] else None]
            if event.op != MARK
        ]

    def marks(self, stage: int) -> list[Event]:
        """Return all events that mark the beginning of a stage."""
        return [e for e in self.events if e.stage == stage and e.op == MARK]

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of attention in the first layer; empty in layers without limits."""
        marks = self.marks(13)
        return marks[0].details if marks else {}

    def passes(self) -> list[tuple[Event, int | None]]:
        """Return the mark of each pass with its sampled token, or None if it has none."""
        passes: list[tuple[Event, int | None]] = []
        for event in self.events:
            if event.stage == 3:
                passes.append((event, None))
            elif event.stage == 20 and passes:
                passes[-1] = (passes[-1][0], event.details["token"])
        return passes

    def origin(self, x: TensorInfo, stage: int) -> str:
        """Return a note that names the stage in which a tensor was last created.

        Tensors are identified by name and shape. In later layers, x comes from the last
        stage of the previous layer.
        """
        source = 0
        for event in self.events:
            if event.stage == stage and event.op != LAYER:
                break
            if any(
                (output.name, output.shape) == (x.name, x.shape)
                for output in event.outputs
            ):
                source = event.stage
        if (source, x.name) == (4, "x"):
            return "from 4; later layers: 18"
        return f"from {source}" if source else ""

    def values(self, stage: int, name: str) -> np.ndarray[Any, Any]:
        """Return the elements of the last result with this name in a stage."""
        values = [
            x.values
            for event in self.first(stage)
            for x in event.outputs
            if x.name == name
        ]
        assert values[-1] is not None, "Recorder.wants_values asks for them"
        return values[-1]

    def prompt(self) -> list[tuple[str, str]]:
        """Return the role and content of each message in the prompt.

        A prompt that is not a chat is returned as one message with the role "text".
        """
        details = self.marks(1)[0].details
        messages = details.get("messages") or [
            {"role": "text", "content": details.get("text", "")}
        ]
        return [(str(m["role"]), str(m["content"])) for m in messages]

    def new_ids(self) -> list[int]:
        """Return the ids of the tokens in the first pass."""
        ids: list[int] = self.marks(1)[0].details["ids"]
        return ids[: self.new_tokens]

    def token_text(self, token: int) -> str:
        """Return a token's text on one line, or "" if it is unknown."""
        return self._texts.get(token, "")

    def is_special(self, token: int) -> bool:
        """Return whether a token is special, which means that its text has no quotes."""
        return not self.token_text(token).startswith("'")

    @cached_property
    def _texts(self) -> dict[int, str]:
        texts: dict[int, str] = {}
        for event in self.events:
            details = event.details
            ids = details.get("ids") or [details.get("token")]
            if event.stage == 20:
                ids = [
                    candidate["token_id"] for candidate in details["choice"]["candidates"]
                ]
            texts |= zip(ids, details.get("texts", ()), strict=False)
        return texts

    @property
    def new_tokens(self) -> int:
        """The number of tokens in the first pass."""
        return int(self.passes()[0][0].details["T"])
