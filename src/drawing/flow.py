"""A stage of ops as a flow from top to bottom: a lane per tensor, ops between results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ..trace.events import Stage
from ..trace.records import Event, TensorInfo
from .canvas import BODY, INNER, MARGIN, SMALL, WIDTH, Box, Canvas, wrapped
from .frame import LINE, Drawn, draw_tensor, is_weight, note_on, tensor_height
from .pictures import HEIGHT, PICTURES, draw_product, is_product
from .run import TracedRun

_GAP = 24.0  # between lanes
_ARROW = 24.0  # between boxes
_ALONE = 460.0  # width of a flow with one lane; its notes stand beside it


@dataclass(eq=False)
class Step:
    """An op with its result."""

    event: Event
    sources: list["Step"] = field(default_factory=list)  # whose results it reads, in order
    inputs: list[TensorInfo] = field(default_factory=list)  # from outside of the stage
    lane: int = 0  # the column that it is drawn in
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
        return next((x for x in self.inputs if not is_weight(x)), None)

    @property
    def side_inputs(self) -> list[TensorInfo]:
        """What else it reads from outside."""
        return [x for x in self.inputs if x is not self.main_input]

    @property
    def arguments(self) -> list[str]:
        """Its arguments that are no tensors, as a line, if there are any."""
        details = self.event.details.items()
        shown = [f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in details]
        return [", ".join(shown)] if shown else []


def steps_of(events: Sequence[Event]) -> list[Step]:
    """Return the graph of the ops of a stage.

    A step has a row below its sources, and the lane of its first one if that is free.
    """
    made: dict[tuple[str, tuple[int, ...]], Step] = {}
    steps: list[Step] = []
    continued: set[Step] = set()
    lanes = 0
    for event in events:
        step = Step(event)
        for x in event.inputs:
            source = made.get((x.name, x.shape))
            if source is None:
                step.inputs.append(x)
            elif source not in step.sources:
                step.sources.append(source)
        step.row = 1 + max((source.row for source in step.sources), default=-1)
        first = step.sources[0] if step.sources else None
        if first is not None and first not in continued:
            continued.add(first)
            step.lane = first.lane
        else:
            step.lane, lanes = lanes, lanes + 1
        made[step.result.name, step.result.shape] = step
        steps.append(step)
    return steps


@dataclass
class _Sheet:
    """A flow while it is drawn."""

    canvas: Canvas
    run: TracedRun
    stage: Stage
    steps: list[Step]

    @property
    def lanes(self) -> int:
        return 1 + max(step.lane for step in self.steps)

    def column(self, lane: int, span: int = 1) -> Box:
        """Return the left edge and the width of a lane, or of some that stand together."""
        lanes = self.lanes
        width = _ALONE if lanes == 1 else (INNER - _GAP * (lanes - 1)) / lanes
        return Box(MARGIN + lane * (width + _GAP), 0, span * width + (span - 1) * _GAP, 0)


def draw_flow(canvas: Canvas, run: TracedRun, stage: Stage, y: float) -> Drawn:
    """Draw a stage whose work is ops."""
    sheet = _Sheet(canvas, run, stage, steps_of(run.first(stage.number)))
    y = _draw_inputs(sheet, y)
    results: dict[Step, Box] = {}
    for row in range(1 + max(step.row for step in sheet.steps)):
        y = _draw_row(sheet, [step for step in sheet.steps if step.row == row], y, results)
    y += 12
    if sheet.lanes > 1:
        y = _draw_notes_below(sheet, y + 10)
    if stage.number in PICTURES:
        y = PICTURES[stage.number](canvas, run, y + 10)
    return y + 10, _letters(sheet.steps), ""


def _draw_inputs(sheet: _Sheet, y: float) -> float:
    """Draw what flows in at the top, one box for lanes that read the same; returns its end."""
    firsts = {step.lane: step.main_input for step in reversed(sheet.steps) if step.row == 0}
    if not any(firsts.values()):
        return y
    for x, group in groupby(range(sheet.lanes), firsts.get):
        if x is not None:
            lane, *others = group
            column = sheet.column(lane, 1 + len(others))
            box = Box(column.x, y, column.width, tensor_height(sheet.run))
            draw_tensor(sheet.canvas, sheet.run, x, box, sheet.run.origin(x, sheet.stage.number))
    return y + tensor_height(sheet.run)


def _draw_row(sheet: _Sheet, steps: list[Step], y: float, results: dict[Step, Box]) -> float:
    """Draw the ops of a row, and below them their results; returns where they end."""
    tensor = tensor_height(sheet.run)
    height = max(
        38 + LINE * len(step.arguments) + len(step.side_inputs) * (tensor + 8) for step in steps
    )
    for step in steps:
        column = sheet.column(step.lane)
        op = Box(column.x, y + _ARROW, column.width, height)
        middle = op.middle[0]
        above = [results[s].bottom for s in step.sources if s.lane == step.lane]
        if above or step.main_input is not None:
            sheet.canvas.arrow([(middle, above[0] if above else y), (middle, op.y)])
        _draw_op(sheet, step, op)
        for source in step.sources:
            if source.lane != step.lane:  # down from another lane and into the side
                box, across = results[source], op.middle[1]
                x = box.middle[0]
                edge = op.right if x > op.right else op.x
                sheet.canvas.arrow([(x, box.bottom), (x, across), (edge, across)])
        result = Box(column.x, op.bottom + _ARROW, column.width, tensor)
        sheet.canvas.arrow([(middle, op.bottom), (middle, result.y)])
        results[step] = draw_tensor(sheet.canvas, sheet.run, step.result, result)
    return y + _ARROW + height + _ARROW + tensor


def _draw_op(sheet: _Sheet, step: Step, box: Box) -> None:
    """Draw an op: its name, its arguments, and what it reads beside the flow."""
    canvas = sheet.canvas
    canvas.rect(box, "op", radius=14)
    y = box.y + 24
    canvas.text((box.x + 14, y), step.event.op, bold=True)
    for line in step.arguments:
        y += LINE
        canvas.text((box.x + 14, y), line, size=SMALL, ink="soft", room=box.width - 28)
    y += 10
    for x in step.side_inputs:
        inner = Box(box.x + 8, y, box.width - 16, tensor_height(sheet.run))
        draw_tensor(canvas, sheet.run, x, inner, sheet.run.origin(x, sheet.stage.number))
        y = inner.bottom + 8
    if sheet.lanes == 1:
        left = box.right + 26
        lines = wrapped(note_on(sheet.stage.number, step.event.op), WIDTH - MARGIN - left, BODY)
        picture = HEIGHT if is_product(step.event) else 0.0
        first = box.middle[1] + 5 - 9 * (len(lines) - 1) + picture / 2
        if picture:
            draw_product(canvas, sheet.run, step.event, left - 10, first - 22 - picture)
        for number, line in enumerate(lines):
            canvas.text((left, first + 19 * number), line, mono=False)


def _draw_notes_below(sheet: _Sheet, y: float) -> float:
    """Write a sentence about each op that occurs; returns where they end."""
    for op in dict.fromkeys(step.event.op for step in sheet.steps):
        note = note_on(sheet.stage.number, op)
        if note:
            sheet.canvas.text((MARGIN, y + 13), op, size=SMALL, bold=True)
            for line in wrapped(note, INNER - 220, BODY):
                sheet.canvas.text((MARGIN + 220, y + 13), line, mono=False)
                y += 20
    return y


def _letters(steps: list[Step]) -> str:
    """Return the letters of all tensors of a stage, in the order of the legend."""
    tensors = [x for step in steps for x in (step.result, *step.inputs)]
    used = {letter for x in tensors for letter in "".join(x.letters)}
    if any(step.event.op == "repeat_heads" for step in steps):
        used.add("G")
    return "".join(letter for letter in "TSCDHKGhFV" if letter in used)
