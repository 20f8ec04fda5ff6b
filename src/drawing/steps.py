"""The steps of a stage as a graph: which step reads what another one made."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..trace import Event, TensorInfo


@dataclass
class Step:
    """An op with its result.

    Attributes:
        event: what the trace says of it.
        sources: the steps of the stage whose results it reads, in the order of its arguments.
        inputs: what it reads from outside of the stage.
        lane: the column that it is drawn in.
        row: the row, from 0.
    """

    event: Event
    sources: list["Step"] = field(default_factory=list)
    inputs: list[TensorInfo] = field(default_factory=list)
    lane: int = 0
    row: int = 0

    @property
    def result(self) -> TensorInfo:
        """Its result."""
        return self.event.outputs[0]

    @property
    def main_input(self) -> TensorInfo | None:
        """What it reads from outside that is no weight: what flows in."""
        if self.sources:
            return None
        return next((x for x in self.inputs if not _is_weight(x)), None)

    @property
    def side_inputs(self) -> list[TensorInfo]:
        """What else it reads from outside."""
        main = self.main_input
        return [x for x in self.inputs if x is not main]


def steps_of(events: Sequence[Event]) -> list[Step]:
    """Return the graph of the ops of a stage."""
    made: dict[tuple[str, tuple[int, ...]], Step] = {}
    steps: list[Step] = []
    for event in events:
        step = Step(event)
        for x in event.inputs:
            source = made.get((x.name, x.shape))
            if source is None:
                step.inputs.append(x)
            elif source not in step.sources:
                step.sources.append(source)
        made[step.result.name, step.result.shape] = step
        steps.append(step)
    _place(steps)
    return steps


def _place(steps: list[Step]) -> None:
    """Give each step a row below its sources, and the lane of its first one if that is free."""
    continued: set[int] = set()
    lanes = 0
    for step in steps:
        step.row = 1 + max((source.row for source in step.sources), default=-1)
        first = step.sources[0] if step.sources else None
        if first is not None and id(first) not in continued:
            continued.add(id(first))
            step.lane = first.lane
        else:
            step.lane, lanes = lanes, lanes + 1


def _is_weight(x: TensorInfo) -> bool:
    return x.name.endswith((".weight", ".bias"))
