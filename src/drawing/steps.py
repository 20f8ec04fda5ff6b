"""The steps of a stage as a graph: which step reads what another one made."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..trace import Event, TensorInfo

# What an op reads of the tensors that it is given, or beyond them: the cache is not an argument.
_READS = {
    "cache_k": ("xk",),
    "cache_v": ("xv",),
    "keys": ("cache_k",),
    "values": ("cache_v",),
}
_CACHE_OPS = ("write_cache", "read_cache")


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
        """What it reads from outside that is not a weight: what flows in."""
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
        for x in _read(event, steps):
            source = made.get((x.name, x.shape))
            if source is None:
                step.inputs.append(x)
            elif source not in step.sources:
                step.sources.append(source)
        made[step.result.name, step.result.shape] = step
        steps.append(step)
    _place(steps)
    return steps


def _read(event: Event, before: list[Step]) -> list[TensorInfo]:
    """Return the tensors that an op reads, those of the cache among them."""
    if event.op not in _CACHE_OPS:
        return list(event.inputs)
    wanted = _READS.get(event.outputs[0].name, ())
    known = [*event.inputs, *(step.result for step in before)]
    return [x for x in known if x.name in wanted]


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
