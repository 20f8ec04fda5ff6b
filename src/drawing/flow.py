"""A stage of ops as a flow from top to bottom: a lane per tensor, ops between results."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..trace.records import Event, TensorInfo
from .canvas import BODY, INNER, MARGIN, SMALL, WIDTH, Box, wrapped
from .frame import LINE, Drawn, Sheet, draw_tensor, in_columns, is_weight, note_on
from .pictures import HEIGHT, PICTURES, draw_product, is_product

_ARROW = 24.0  # between boxes


@dataclass(eq=False)
class _Step:
    """An op with its result."""

    event: Event
    sources: list["_Step"]  # whose results it reads, in order
    main: TensorInfo | None  # what flows in from outside of the stage, not a weight
    beside: list[TensorInfo]  # what else it reads from outside
    lane: int  # the column that it is drawn in
    row: int

    @property
    def result(self) -> TensorInfo:
        return self.event.outputs[0]


def steps_of(events: Sequence[Event]) -> list[_Step]:
    """Return the graph of the ops of a stage.

    A step has a row below its sources, and the lane of its first one if that is free.
    """
    made: dict[tuple[str, tuple[int, ...]], _Step] = {}
    steps: list[_Step] = []
    for event in events:
        found = [(x, made.get((x.name, x.shape))) for x in event.inputs]
        sources = list(dict.fromkeys(source for _, source in found if source is not None))
        outside = [x for x, source in found if source is None]
        main = None if sources else next((x for x in outside if not is_weight(x)), None)
        row = 1 + max((source.row for source in sources), default=-1)
        if sources and all(step.sources[:1] != sources[:1] for step in steps):
            lane = sources[0].lane
        else:
            lane = 1 + max((step.lane for step in steps), default=-1)
        step = _Step(
            event, sources, main, [x for x in outside if x is not main], lane, row
        )
        made[step.result.name, step.result.shape] = step
        steps.append(step)
    return steps


def draw_flow(sheet: Sheet, y: float) -> Drawn:
    """Draw a stage whose work is ops."""
    steps = steps_of(sheet.run.first(sheet.number))
    lanes = 1 + max(step.lane for step in steps)
    y = _draw_inputs(sheet, steps, lanes, y)
    results: dict[_Step, Box] = {}
    for row in range(1 + max(step.row for step in steps)):
        y = _draw_row(
            sheet, [step for step in steps if step.row == row], lanes, y, results
        )
    y += 12
    if lanes > 1:
        y = _draw_notes_below(sheet, steps, y + 10)
    if sheet.number in PICTURES:
        y = PICTURES[sheet.number](sheet, y + 10)
    return y + 10, _letters(steps), ""


def _draw_inputs(sheet: Sheet, steps: list[_Step], lanes: int, y: float) -> float:
    """Draw what flows in at the top, one box for lanes that read the same; returns its
    end.
    """
    firsts = {step.lane: step.main for step in reversed(steps) if step.row == 0}
    end = y
    for x, group in groupby(range(lanes), firsts.get):
        if x is not None:
            lane, *others = group
            place = in_columns(lanes, (lane, 1 + len(others)), y)
            end = draw_tensor(sheet, x, place, sheet.run.origin(x, sheet.number)).bottom
    return end


def _draw_row(
    sheet: Sheet, steps: list[_Step], lanes: int, y: float, results: dict[_Step, Box]
) -> float:
    """Draw the ops of a row, and below them their results; returns where they end."""
    height = max(
        38
        + LINE * bool(step.event.arguments)
        + len(step.beside) * (sheet.tensor_height + 8)
        for step in steps
    )
    end = y + _ARROW + height + _ARROW  # of the arrows below the ops
    for step in steps:
        op = in_columns(lanes, (step.lane, 1), y + _ARROW, height)
        middle = op.middle[0]
        above = [results[s].bottom for s in step.sources if s.lane == step.lane]
        if above or step.main is not None:
            sheet.arrow([(middle, above[0] if above else y), (middle, op.y)])
        _draw_op(sheet, step, op, has_notes=lanes == 1)
        for source in step.sources:
            if source.lane != step.lane:  # down from another lane and into the side
                box = results[source]
                across = op.middle[1]
                x = box.middle[0]
                edge = op.right if x > op.right else op.x
                sheet.arrow([(x, box.bottom), (x, across), (edge, across)])
        sheet.arrow([(middle, op.bottom), (middle, end)])
        results[step] = draw_tensor(sheet, step.result, Box(op.x, end, op.width))
    return end + sheet.tensor_height


def _draw_op(sheet: Sheet, step: _Step, box: Box, *, has_notes: bool) -> None:
    """Draw an op: its name, its arguments, what it reads beside the flow, and perhaps
    notes.
    """
    sheet.rect(box, "op", radius=14)
    y = box.y + 24
    sheet.text((box.x + 14, y), step.event.op, bold=True)
    if step.event.arguments:
        y += LINE
        line = ", ".join(step.event.arguments)
        sheet.text((box.x + 14, y), line, size=SMALL, ink="soft", room=box.width - 28)
    y += 10
    for x in step.beside:
        place = Box(box.x + 8, y, box.width - 16)
        y = draw_tensor(sheet, x, place, sheet.run.origin(x, sheet.number)).bottom + 8
    if has_notes:
        left = box.right + 26
        lines = wrapped(note_on(sheet.number, step.event.op), WIDTH - MARGIN - left, BODY)
        picture = HEIGHT if is_product(step.event) else 0.0
        first = box.middle[1] + 5 - 9 * (len(lines) - 1) + picture / 2
        if picture:
            draw_product(sheet, step.event, left - 10, first - 22 - picture)
        for number, line in enumerate(lines):
            sheet.text((left, first + 19 * number), line, mono=False)


def _draw_notes_below(sheet: Sheet, steps: list[_Step], y: float) -> float:
    """Write a sentence about each op that occurs; returns where they end."""
    for op in dict.fromkeys(step.event.op for step in steps):
        note = note_on(sheet.number, op)
        if note:
            sheet.text((MARGIN, y + 13), op, size=SMALL, bold=True)
            for line in wrapped(note, INNER - 220, BODY):
                sheet.text((MARGIN + 220, y + 13), line, mono=False)
                y += 20
    return y


def _letters(steps: list[_Step]) -> str:
    """Return the letters of all tensors of a stage, in the order of the legend."""
    tensors = [x for step in steps for x in (step.result, *step.event.inputs)]
    used = {letter for x in tensors for letter in "".join(x.letters)}
    if any(step.event.op == "repeat_heads" for step in steps):
        used.add("G")
    return "".join(letter for letter in "TSCDHKGhFV" if letter in used)
