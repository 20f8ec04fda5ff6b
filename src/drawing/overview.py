"""Draw the whole model, and the stages that contain others or add to the stream."""

from collections.abc import Sequence

from .canvas import INNER, LARGE, MARGIN, SMALL, WIDTH, Box
from .flow import draw_flow
from .frame import (
    DrawnEnd,
    Lane,
    Sheet,
    draw_link,
    draw_tensor,
    in_columns,
    note_on,
    tensor_lines,
)
from .run import TracedRun

_ARROW = 26.0
_LINK = 40.0
# The left edge, width and centre of the column of stages in a block and in the model.
_LEFT = 120.0
_WIDE = 420.0
_MIDDLE = _LEFT + _WIDE / 2
_LABEL_END = 800.0  # the right edge of the labels next to that column
_COLUMNS = 3


def draw_block_stage(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 5: how a layer changes the residual stream."""
    x = sheet.run.first(6)[0].inputs[0]
    box = draw_tensor(sheet, x, Box(_LEFT, y, _WIDE), sheet.run.origin(x, 6))
    y = _draw_block(sheet, box.bottom)
    sheet.arrow([(box.middle[0], y), (box.middle[0], y + _ARROW)])
    box = draw_tensor(
        sheet, sheet.run.first(18)[-1].outputs[0], Box(_LEFT, y + _ARROW, _WIDE)
    )
    note = (
        "The residual stream x keeps its shape through all layers. Each half of a layer "
        "reads its normalized values and adds a result (green: x itself, unchanged). "
        "Attention reads other positions, feed-forward processes each position alone. "
        f"The model has {_layers(sheet.run)} layers with different weights."
    )
    return box.bottom + 16, "TDL", note


def draw_attention_stage(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 7: the path of queries, keys and values through stages 8 to 14."""
    queries = (0, 1)
    keys = (1, 1)
    values = (2, 1)
    both = (0, 2)
    all_columns = (0, 3)
    normed = sheet.run.first(8)[0].inputs[0]
    y = draw_tensor(sheet, normed, in_columns(_COLUMNS, all_columns, y), "from 6").bottom
    rows: tuple[tuple[int, Lane, Sequence[tuple[Lane, str]]], ...] = (
        (8, all_columns, ((queries, "xq"), (keys, "xk"), (values, "xv"))),
        (9, all_columns, ((queries, "xq"), (keys, "xk"), (values, "xv"))),
        (10, both, ()),
        (11, (1, 2), ((keys, "keys"), (values, "values"))),
        (12, all_columns, ((queries, "xq"), (keys, "keys"), (values, "values"))),
        (13, both, ((both, "weights"),)),
        (14, all_columns, ((all_columns, "attention"),)),
    )
    begins = [y] * _COLUMNS  # where each column's next arrow starts; it may skip a stage
    for number, (first, count), results in rows:
        box = in_columns(_COLUMNS, (first, count), y + _ARROW, _LINK)
        columns = range(first, first + count)
        for column in columns:
            middle = in_columns(_COLUMNS, (column, 1), 0).middle[0]
            sheet.arrow([(middle, begins[column]), (middle, box.y)])
        draw_link(sheet, number, box)
        y = box.bottom
        results_by_name = {
            x.name: x for event in sheet.run.first(number) for x in event.outputs
        }
        for place, name in results:
            out = in_columns(_COLUMNS, place, y + _ARROW)
            sheet.arrow([(out.middle[0], box.bottom), (out.middle[0], out.y)])
            draw_tensor(sheet, results_by_name[name], out)
        if results:
            y += _ARROW + sheet.tensor_height
        for column in columns:
            begins[column] = y
    return y + 14, "TSDHKh", ""


def draw_model(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw the whole model, from the prompt's text to the answer's text."""
    y = _draw_text(sheet, sheet.run.prompt()[-1][1], y)
    sheet.arrow([(_MIDDLE, y), (_MIDDLE, y + _ARROW)])
    y = _draw_chain(sheet, (1, 2), y + _ARROW)
    loop = sheet.slot()
    top = y + 14
    sheet.arrow([(_MIDDLE, y), (_MIDDLE, top + 40)])
    sheet.text((MARGIN + 14, top + 26), "3", size=LARGE, mono=False, bold=True)
    sheet.text((MARGIN + 36, top + 26), "loop over the sequence", mono=False)
    first = top + 40
    y = _draw_chain(sheet, (4,), first)
    y = _draw_layers(sheet, y)
    y = _draw_chain(sheet, (19, 20, 21), y)
    right = WIDTH - MARGIN - 30
    out_y = y + 10
    back = first - 14
    sheet.arrow(
        [(_MIDDLE, out_y), (right, out_y), (right, back), (_MIDDLE, back)], "residual"
    )
    bottom = y + 24
    sheet.rect(Box(MARGIN, top, INNER, bottom - top), "group", radius=12, slot=loop)
    answer = "".join(str(event.details["text"]) for event in sheet.run.marks(21))
    sheet.arrow([(_MIDDLE, y), (_MIDDLE, bottom + 20)])
    y = _draw_text(sheet, answer, bottom + 20) + 12
    note = (
        "Green: unchanged values. Around each half of a layer they are the residual "
        "stream; from stage 21 back to 4 they are the chosen token, the only new token "
        "of the next pass."
    )
    return y, "TDHKhFVL", note


def _draw_text(sheet: Sheet, text: str, y: float) -> float:
    """Draw input or output text on one line, and return the lower edge."""
    box = sheet.rect(Box(_LEFT, y, _WIDE, 40), "op")
    sheet.text(
        (_MIDDLE, y + 25), repr(text)[1:-1], size=SMALL, anchor="middle", room=_WIDE - 20
    )
    return box.bottom


def _draw_layers(sheet: Sheet, y: float) -> float:
    """Draw the transformer block in a frame with arrows, and return where they end."""
    frame = sheet.slot()
    top = y + 14
    sheet.text((MARGIN + 28, top + 26), "5", size=LARGE, mono=False, bold=True)
    sheet.text(
        (MARGIN + 50, top + 26), f"each of {_layers(sheet.run)} blocks", mono=False
    )
    sheet.arrow([(_MIDDLE, y), (_MIDDLE, top + 36)], head=False)
    bottom = _draw_block(sheet, top + 36)
    box = Box(MARGIN + 14, top, _LABEL_END - MARGIN - 14, bottom + 14 - top)
    sheet.rect(box, "layers", radius=12, slot=frame)
    sheet.arrow([(_MIDDLE, bottom), (_MIDDLE, box.bottom + _ARROW)])
    return box.bottom + _ARROW


def _draw_block(sheet: Sheet, y: float) -> float:
    """Draw the stages in a block with their top at `y`, and return the lower edge."""
    for half in ((6, 7, 15), (16, 17, 18)):
        branch = y + 8
        sheet.arrow([(_MIDDLE, y), (_MIDDLE, y + _ARROW)])
        y = _draw_chain(sheet, half, y + _ARROW)
        side = _LEFT - 44
        end = y - _LINK / 2
        sheet.arrow(
            [(_MIDDLE, branch), (side, branch), (side, end), (_LEFT, end)], "residual"
        )
    return y


def _draw_chain(sheet: Sheet, numbers: Sequence[int], y: float) -> float:
    """Draw stages below each other with their results, and return the lower edge."""
    for at, number in enumerate(numbers):
        if at:
            sheet.arrow([(_MIDDLE, y), (_MIDDLE, y + _ARROW)])
            y += _ARROW
        box = draw_link(sheet, number, Box(_LEFT, y, _WIDE, _LINK))
        lines = _result_lines(sheet.run, number)
        left = box.right + 16
        line_y = box.middle[1] + 5 - 8 * (len(lines) - 1)
        for line, ink in zip(lines, ("ink", "soft", "soft"), strict=False):
            sheet.text(
                (left, line_y), line, size=SMALL, ink=ink, room=_LABEL_END - left - 8
            )
            line_y += 16
        y = box.bottom
    return y


def _result_lines(run: TracedRun, number: int) -> list[str]:
    """Return the text lines that describe a stage's result."""
    if number == 1:
        return [f"{len(run.marks(1)[0].details['ids'])} ids"]
    if number == 2:
        return tensor_lines(run, run.marks(2)[0].outputs[0])
    if number in (20, 21):
        details = run.marks(number)[0].details
        return [f"token {details['token']}" if number == 20 else repr(details["text"])]
    source = {4: 4, 7: 14}.get(number, number)
    results = [event.outputs[0] for event in run.first(source)]
    x = next((x for x in reversed(results) if number == 4 and x.name == "x"), results[-1])
    return tensor_lines(run, x)


def _layers(run: TracedRun) -> str:
    beside = (
        "" if run.beside is None else f" ({run.beside.name}: {run.beside.sizes['L']})"
    )
    return f"{run.sizes['L']}{beside}"


def draw_residual(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 15 or 18: the residual stream plus a sublayer's result."""
    *before, event = sheet.run.first(sheet.number)
    if before:  # OLMo 2 has additional ops in these stages
        return draw_flow(sheet, y)
    middle = WIDTH / 2
    plus = Box(middle - 20, y + sheet.tensor_height + 34, 40, 40)
    for place, (x, kind) in enumerate(
        zip(event.inputs, ("residual", "arrow"), strict=True)
    ):
        box = draw_tensor(
            sheet, x, in_columns(2, (place, 1), y), sheet.run.origin(x, sheet.number)
        )
        edge = plus.right if place else plus.x
        turn = (box.middle[0], plus.middle[1])
        sheet.arrow([(box.middle[0], box.bottom), turn, (edge, plus.middle[1])], kind)
    sheet.rect(plus, "op", radius=20)
    sheet.text(
        (middle, plus.middle[1] + 7), "+", size=LARGE + 4, anchor="middle", bold=True
    )
    out = Box(middle - box.width / 2, plus.bottom + _ARROW, box.width)
    sheet.arrow([(middle, plus.bottom), (middle, out.y)], "residual")
    out = draw_tensor(sheet, event.outputs[0], out)
    return out.bottom + 16, "TD", note_on(sheet.number, event.op)
