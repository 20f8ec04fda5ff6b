"""What holds other stages: 5, a transformer block; 7, attention; and the whole model."""

from collections.abc import Sequence

from ..trace.events import Stage
from .canvas import INNER, LARGE, MARGIN, SMALL, WIDTH, Box, Canvas
from .flow import draw_flow
from .frame import Drawn, draw_link, draw_tensor, note_on, tensor_height, tensor_lines
from .run import TracedRun

_ARROW = 26.0
_LINK = 40.0
_GAP = 24.0
_LEFT, _WIDE = 120.0, 420.0  # the column of stages in a block and in the model
_MIDDLE = _LEFT + _WIDE / 2
_LABEL_END = 800.0  # where what stands at the right of that column ends
_COLUMNS = 3

_Lane = tuple[int, int]  # the first column and how many


def draw_block_stage(canvas: Canvas, run: TracedRun, _stage: Stage, y: float) -> Drawn:
    """Draw stage 5: what a layer does to the residual stream."""
    x = run.first(6)[0].inputs[0]
    box = Box(_LEFT, y, _WIDE, tensor_height(run))
    draw_tensor(canvas, run, x, box, run.origin(x, 6))
    y = _draw_block(canvas, run, box.bottom)
    canvas.arrow([(box.middle[0], y), (box.middle[0], y + _ARROW)])
    box = Box(_LEFT, y + _ARROW, _WIDE, tensor_height(run))
    draw_tensor(canvas, run, run.first(18)[-1].outputs[0], box)
    note = (
        "The residual stream x keeps its shape through all layers. Each half of a layer reads it "
        "normalized and adds what it found (green: x itself, unchanged). Attention looks at other "
        f"positions, feed-forward at each one by itself. This happens {_layers(run)} times, each "
        "with different weights."
    )
    return box.bottom + 16, "TDL", note


def draw_attention_stage(canvas: Canvas, run: TracedRun, _stage: Stage, y: float) -> Drawn:
    """Draw stage 7: how stages 8 to 14 hand on queries, keys and values."""
    queries, keys, values, both, all_of_them = (0, 1), (1, 1), (2, 1), (0, 2), (0, 3)
    normed = run.first(8)[0].inputs[0]
    draw_tensor(canvas, run, normed, _lane(all_of_them, y, tensor_height(run)), "from 6")
    y += tensor_height(run)
    rows: tuple[tuple[int, _Lane, Sequence[tuple[_Lane, str]]], ...] = (
        (8, all_of_them, ((queries, "xq"), (keys, "xk"), (values, "xv"))),
        (9, all_of_them, ((queries, "xq"), (keys, "xk"), (values, "xv"))),
        (10, both, ()),
        (11, (1, 2), ((keys, "keys"), (values, "values"))),
        (12, all_of_them, ((queries, "xq"), (keys, "keys"), (values, "values"))),
        (13, both, ((both, "scores"),)),
        (14, all_of_them, ((all_of_them, "attention"),)),
    )
    begins = [y] * _COLUMNS  # where the arrow of a column begins: it may pass a stage by
    for number, (first, count), results in rows:
        box = _lane((first, count), y + _ARROW, _LINK)
        columns = range(first, first + count)
        for column in columns:
            middle = _lane((column, 1), 0, 0).middle[0]
            canvas.arrow([(middle, begins[column]), (middle, box.y)])
        draw_link(canvas, number, box)
        y = box.bottom
        made = {x.name: x for event in run.first(number) for x in event.outputs}
        for place, name in results:
            out = _lane(place, y + _ARROW, tensor_height(run))
            canvas.arrow([(out.middle[0], box.bottom), (out.middle[0], out.y)])
            draw_tensor(canvas, run, made[name], out)
        if results:
            y += _ARROW + tensor_height(run)
        for column in columns:
            begins[column] = y
    return y + 14, "TSDHKh", ""


def draw_model(canvas: Canvas, run: TracedRun, y: float) -> Drawn:
    """Draw the whole model: from the text of the prompt to that of the answer."""
    y = _draw_text(canvas, run.prompt()[-1][1], y)
    canvas.arrow([(_MIDDLE, y), (_MIDDLE, y + _ARROW)])
    y = _draw_chain(canvas, run, (1, 2), y + _ARROW)
    loop = canvas.slot()
    top = y + 14
    canvas.arrow([(_MIDDLE, y), (_MIDDLE, top + 40)])
    canvas.text((MARGIN + 14, top + 26), "3", size=LARGE, mono=False, bold=True)
    canvas.text((MARGIN + 36, top + 26), "loop over the sequence", mono=False)
    first = top + 40
    y = _draw_chain(canvas, run, (4,), first)
    y = _draw_layers(canvas, run, y)
    y = _draw_chain(canvas, run, (19, 20, 21), y)
    right, out_y, back = WIDTH - MARGIN - 30, y + 10, first - 14
    canvas.arrow([(_MIDDLE, out_y), (right, out_y), (right, back), (_MIDDLE, back)], "residual")
    bottom = y + 24
    canvas.rect(Box(MARGIN, top, INNER, bottom - top), "group", radius=12, slot=loop)
    answer = "".join(str(event.details["text"]) for event in run.marks(21))
    canvas.arrow([(_MIDDLE, y), (_MIDDLE, bottom + 20)])
    y = _draw_text(canvas, answer, bottom + 20) + 12
    note = (
        "Green: what goes on unchanged. Around each half of a layer it is the residual stream; "
        "from stage 21 back to 4 it is the chosen token, the one new token of the next pass."
    )
    return y, "TDHKhFVL", note


def _draw_text(canvas: Canvas, text: str, y: float) -> float:
    """Draw the text that goes in or comes out on a line; return where it ends."""
    box = canvas.rect(Box(_LEFT, y, _WIDE, 40), "op")
    canvas.text((_MIDDLE, y + 25), repr(text)[1:-1], size=SMALL, anchor="middle", room=_WIDE - 20)
    return box.bottom


def _draw_layers(canvas: Canvas, run: TracedRun, y: float) -> float:
    """Draw the block in its frame, and the arrows into it and out of it; returns their end."""
    frame, top = canvas.slot(), y + 14
    canvas.text((MARGIN + 28, top + 26), "5", size=LARGE, mono=False, bold=True)
    canvas.text((MARGIN + 50, top + 26), f"each of {_layers(run)} blocks", mono=False)
    canvas.arrow([(_MIDDLE, y), (_MIDDLE, top + 36)], head=False)
    bottom = _draw_block(canvas, run, top + 36)
    box = Box(MARGIN + 14, top, _LABEL_END - MARGIN - 14, bottom + 14 - top)
    canvas.rect(box, "layers", radius=12, slot=frame)
    canvas.arrow([(_MIDDLE, bottom), (_MIDDLE, box.bottom + _ARROW)])
    return box.bottom + _ARROW


def _draw_block(canvas: Canvas, run: TracedRun, y: float) -> float:
    """Draw the stages of a block below a height; returns where they end."""
    for half in ((6, 7, 15), (16, 17, 18)):
        branch = y + 8
        canvas.arrow([(_MIDDLE, y), (_MIDDLE, y + _ARROW)])
        y = _draw_chain(canvas, run, half, y + _ARROW)
        side, end = _LEFT - 44, y - _LINK / 2
        canvas.arrow([(_MIDDLE, branch), (side, branch), (side, end), (_LEFT, end)], "residual")
    return y


def _draw_chain(canvas: Canvas, run: TracedRun, numbers: Sequence[int], y: float) -> float:
    """Draw stages one below the other, each with what it makes; returns where they end."""
    for at, number in enumerate(numbers):
        if at:
            canvas.arrow([(_MIDDLE, y), (_MIDDLE, y + _ARROW)])
            y += _ARROW
        box = draw_link(canvas, number, Box(_LEFT, y, _WIDE, _LINK))
        lines = _made(run, number)
        left, line_y = box.right + 16, box.middle[1] + 5 - 8 * (len(lines) - 1)
        for line, ink in zip(lines, ("ink", "soft", "soft"), strict=False):
            canvas.text((left, line_y), line, size=SMALL, ink=ink, room=_LABEL_END - left - 8)
            line_y += 16
        y = box.bottom
    return y


def _made(run: TracedRun, number: int) -> list[str]:
    """Return what a stage makes, as lines."""
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


def _lane(lane: _Lane, y: float, height: float) -> Box:
    """Return the place of a box that stands in some of the columns."""
    width = (INNER - _GAP * (_COLUMNS - 1)) / _COLUMNS
    first, count = lane
    return Box(MARGIN + first * (width + _GAP), y, count * width + (count - 1) * _GAP, height)


def _layers(run: TracedRun) -> str:
    beside = "" if run.beside is None else f" ({run.beside.name}: {run.beside.sizes['L']})"
    return f"{run.sizes['L']}{beside}"


def draw_residual(canvas: Canvas, run: TracedRun, stage: Stage, y: float) -> Drawn:
    """Draw stages 15 and 18: what the stream has and what it gains, added."""
    *before, event = run.first(stage.number)
    if before:  # Granite and OLMo 2 do more than add
        return draw_flow(canvas, run, stage, y)
    middle, half = WIDTH / 2, (INNER - _GAP) / 2
    plus = Box(middle - 20, y + tensor_height(run) + 34, 40, 40)
    for place, (x, kind) in enumerate(zip(event.inputs, ("residual", "arrow"), strict=True)):
        box = Box(MARGIN + place * (half + _GAP), y, half, tensor_height(run))
        draw_tensor(canvas, run, x, box, run.origin(x, stage.number))
        edge = plus.right if place else plus.x
        turn = (box.middle[0], plus.middle[1])
        canvas.arrow([(box.middle[0], box.bottom), turn, (edge, plus.middle[1])], kind)
    canvas.rect(plus, "op", radius=20)
    canvas.text((middle, plus.middle[1] + 7), "+", size=LARGE + 4, anchor="middle", bold=True)
    out = Box(middle - half / 2, plus.bottom + _ARROW, half, tensor_height(run))
    canvas.arrow([(middle, plus.bottom), (middle, out.y)], "residual")
    draw_tensor(canvas, run, event.outputs[0], out)
    return out.bottom + 16, "TD", note_on(stage.number, event.op)
