"""Draw a stage of ops as a flow from top to bottom, with parallel tensors in lanes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..trace.records import Event, TensorInfo
from .canvas import BODY, INNER, MARGIN, SMALL, WIDTH, Box, wrapped
from .frame import LINE, DrawnEnd, Sheet, draw_tensor, in_columns, is_weight, note_on
from .pictures import HEIGHT, PICTURES, draw_product, is_product

_ARROW = 24.0  # the length of an arrow between boxes


@dataclass(eq=False)
class _FlowStep:
    """An op with its result, and its position in the flow."""

    event: Event
    sources: list["_FlowStep"]  # the steps whose results it reads, in order
    main: TensorInfo | None  # the main input, if it comes from outside the stage
    side_inputs: list[TensorInfo]  # weights and other inputs from outside the stage
    lane: int  # the index of its column
    row: int

    @property
    def result(self) -> TensorInfo:
        return self.event.outputs[0]


def steps_of(events: Sequence[Event]) -> list[_FlowStep]:
    """Arrange a stage's ops as a graph.

    Each step is in a row below its sources, and in the lane of its first source if no
    other step continues that lane.
    """
    by_result: dict[tuple[str, tuple[int, ...]], _FlowStep] = {}
    steps: list[_FlowStep] = []
    for event in events:
        inputs = [(x, by_result.get((x.name, x.shape))) for x in event.inputs]
        sources = list(
            dict.fromkeys(source for _, source in inputs if source is not None)
        )
        outside = [x for x, source in inputs if source is None]
        main = None if sources else next((x for x in outside if not is_weight(x)), None)
        row = 1 + max((source.row for source in sources), default=-1)
        if sources and all(step.sources[:1] != sources[:1] for step in steps):
            lane = sources[0].lane
        else:
            lane = 1 + max((step.lane for step in steps), default=-1)
        step = _FlowStep(
            event, sources, main, [x for x in outside if x is not main], lane, row
        )
        by_result[step.result.name, step.result.shape] = step
        steps.append(step)
    return steps


def draw_flow(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw a stage that consists of ops."""
    steps = steps_of(sheet.run.first(sheet.number))
    lanes = 1 + max(step.lane for step in steps)
    y = _draw_inputs(sheet, steps, lanes, y)
    results: dict[_FlowStep, Box] = {}
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


def _draw_inputs(sheet: Sheet, steps: list[_FlowStep], lanes: int, y: float) -> float:
    """Draw the inputs at the top, and return their lower edge.

    Adjacent lanes with the same input share one box.
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
    sheet: Sheet,
    steps: list[_FlowStep],
    lanes: int,
    y: float,
    results: dict[_FlowStep, Box],
) -> float:
    """Draw a row of ops with their results below, and return the lower edge."""
    height = max(
        38
        + LINE * bool(step.event.arguments)
        + len(step.side_inputs) * (sheet.tensor_height + 8)
        for step in steps
    )
    end = y + _ARROW + height + _ARROW  # where the arrows below the ops end
    for step in steps:
        op = in_columns(lanes, (step.lane, 1), y + _ARROW, height)
        middle = op.middle[0]
        above = [results[s].bottom for s in step.sources if s.lane == step.lane]
        if above or step.main is not None:
            sheet.arrow([(middle, above[0] if above else y), (middle, op.y)])
        _draw_op(sheet, step, op, has_notes=lanes == 1)
        for source in step.sources:
            if source.lane != step.lane:  # draw a line down and into the side of the op
                box = results[source]
                across = op.middle[1]
                x = box.middle[0]
                edge = op.right if x > op.right else op.x
                sheet.arrow([(x, box.bottom), (x, across), (edge, across)])
        sheet.arrow([(middle, op.bottom), (middle, end)])
        results[step] = draw_tensor(sheet, step.result, Box(op.x, end, op.width))
    return end + sheet.tensor_height


def _draw_op(sheet: Sheet, step: _FlowStep, box: Box, *, has_notes: bool) -> None:
    """Draw an op with its name, arguments and side inputs, and optionally with notes."""
    sheet.rect(box, "op", radius=14)
    y = box.y + 24
    sheet.text((box.x + 14, y), step.event.op, bold=True)
    if step.event.arguments:
        y += LINE
        line = ", ".join(step.event.arguments)
        sheet.text((box.x + 14, y), line, size=SMALL, ink="soft", room=box.width - 28)
    y += 10
    for x in step.side_inputs:
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


def _draw_notes_below(sheet: Sheet, steps: list[_FlowStep], y: float) -> float:
    """Draw an explanatory sentence for each op, and return the lower edge."""
    for op in dict.fromkeys(step.event.op for step in steps):
        note = note_on(sheet.number, op)
        if note:
            sheet.text((MARGIN, y + 13), op, size=SMALL, bold=True)
            for line in wrapped(note, INNER - 220, BODY):
                sheet.text((MARGIN + 220, y + 13), line, mono=False)
                y += 20
    return y


def _letters(steps: list[_FlowStep]) -> str:
    """Return the letters of all tensors in a stage, in legend order."""
    tensors = [x for step in steps for x in (step.result, *step.event.inputs)]
    used = {letter for x in tensors for letter in "".join(x.letters)}
    if any(step.event.op == "repeat_heads" for step in steps):
        used.add("G")
    return "".join(letter for letter in "TSCDHKGhFVEA" if letter in used)
