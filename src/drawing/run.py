"""What the diagrams draw: the events of a traced run,
and what they say about each stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..trace.events import size_of
from ..trace.records import LAYER, MARK, Event, TensorInfo

_EVERY_PASS = (3, 20, 21)
_WITH_VALUES = (4, 13, 17)


@dataclass
class Recorder:
    """Keeps the events of a run that diagrams show, however long its answer is.

    These are those of the first layer in the first pass through the network, and of every
    pass the marks of the loop around it.
    """

    events: list[Event] = field(default_factory=list)  # what was kept, in order

    def write(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)

    def wants(self, stage: int, layer: int | None, step: int | None) -> bool:
        """Return whether events of a stage, a layer and a step are worth making."""
        return stage in _EVERY_PASS if step else layer in (None, 0)

    def wants_values(self, stage: int, layer: int | None, step: int | None) -> bool:
        """Return whether a diagram draws the elements of what a stage makes."""
        return stage in _WITH_VALUES and not step and self.wants(stage, layer, step)


@dataclass(frozen=True)
class Beside:
    """Another model, whose numbers stand beside those of the run."""

    name: str  # a few letters
    title: str  # in full
    sizes: Mapping[str, int]  # by letter, T and S among them

    def shape(self, x: TensorInfo) -> tuple[int, ...]:
        """Return the shape that a tensor has there, empty where it has no letters."""
        found = (size_of(letter, self.sizes) for letter in x.letters)
        return tuple(size for size in found if size is not None)


@dataclass(frozen=True)
class TracedRun:
    """A run to draw."""

    model: str  # what it is called
    sizes: Mapping[str, int]  # by letter
    events: Sequence[Event]  # of one answer, in order
    beside: Beside | None = None

    def first(self, stage: int) -> list[Event]:
        """Return the events of a stage in the first pass and the first layer, without its
        mark.
        """
        found = [e for e in self.events if e.stage == stage and e.layer in (None, 0)]
        marks = [place for place, event in enumerate(found) if event.op == MARK]
        return [
            event
            for event in found[: marks[1] if marks[1:] else None]
            if event.op != MARK
        ]

    def marks(self, stage: int) -> list[Event]:
        """Return all events that open a stage."""
        return [e for e in self.events if e.stage == stage and e.op == MARK]

    def passes(self) -> list[tuple[Event, int | None]]:
        """Return the mark of each pass of the loop, and the token that was drawn after
        it.
        """
        found: list[tuple[Event, int | None]] = []
        for event in self.events:
            if event.stage == 3:
                found.append((event, None))
            elif event.stage == 20 and found:
                found[-1] = (found[-1][0], event.details["token"])
        return found

    def origin(self, x: TensorInfo, stage: int) -> str:
        """Say which stage before another one last made a tensor of this name and shape,
        if any.

        In later layers x comes from the last stage of the layer before.
        """
        found = 0
        for event in self.events:
            if event.stage == stage and event.op != LAYER:
                break
            if any(
                (made.name, made.shape) == (x.name, x.shape) for made in event.outputs
            ):
                found = event.stage
        if (found, x.name) == (4, "x"):
            return "from 4; later layers: 18"
        return f"from {found}" if found else ""

    def values(self, stage: int, name: str) -> np.ndarray[Any, Any]:
        """Return the elements of what a stage made last under a name."""
        made = [
            x.values
            for event in self.first(stage)
            for x in event.outputs
            if x.name == name
        ]
        assert made[-1] is not None, "Recorder.wants_values asks for them"
        return made[-1]

    def prompt(self) -> list[tuple[str, str]]:
        """Return who says what in the prompt, or the text of a completion."""
        details = self.marks(1)[0].details
        messages = details.get("messages") or [
            {"role": "text", "content": details.get("text", "")}
        ]
        return [(str(m["role"]), str(m["content"])) for m in messages]

    def new_ids(self) -> list[int]:
        """Return the ids of the tokens of the first pass."""
        ids: list[int] = self.marks(1)[0].details["ids"]
        return ids[: self.new_tokens]

    def piece(self, token: int) -> str:
        """Return the text of a token as it can be shown on a line."""
        return self._texts.get(token, "")

    def is_special(self, token: int) -> bool:
        """Return whether no text turns into a token: then its text has no quotes."""
        return not self.piece(token).startswith("'")

    @cached_property
    def _texts(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for event in self.events:
            details = event.details
            ids = details.get("ids") or [details.get("token")]
            if event.stage == 20:
                ids = [
                    candidate["token_id"] for candidate in details["choice"]["candidates"]
                ]
            found |= zip(ids, details.get("texts", ()), strict=False)
        return found

    @property
    def new_tokens(self) -> int:
        """The tokens of the first pass."""
        return int(self.passes()[0][0].details["T"])
