"""Draw the parts that diagrams share: headings, tensor boxes, notes and the legend."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ..trace.events import HOLDS, LEGEND, STAGES
from ..trace.records import TensorInfo
from .canvas import (
    BODY,
    INNER,
    LARGE,
    MARGIN,
    SMALL,
    TITLE,
    Box,
    Canvas,
    Point,
    shortened,
    wrapped,
)
from .run import TracedRun

_BADGE = 44.0
LINE = 18.0
_PADDING = 9.0
_GLYPH = 42.0  # the side length of the square that shows a tensor as sheets, in pixels
_LARGEST_EXPONENT = 17  # base-2 logarithm of the largest size drawn to scale
_SHEET_OFFSET = 4.0
_MOST_SHEETS = 3
_GAP = 24.0  # the gap between columns
_ALONE = 460.0  # the width of a single column, which leaves space for notes
_UNBROKEN = "\0"  # replaces spaces at which a line must not be broken

_STRIP_HEIGHT = 22.0
_LABEL_HEIGHT = 20.0
# The parts of the model in the strip below a heading: the name, and the first and last
# stage.
_PARTS = (
    ("text to ids", 1, 3),
    ("input", 4, 4),
    ("layer", 5, 6),
    ("attention", 7, 15),
    ("feed-forward", 16, 18),
    ("next token", 19, 21),
)
_LAYER = 5, 18

DrawnEnd = tuple[float, str, str]
"""The lower edge of a diagram, the letters for its legend, and a note."""
Lane = tuple[int, int]
"""The columns that a box spans: the index of the first one, and the number of columns."""

_LINEAR = "x times the transposed weight: a weight is stored [out, in]."
_NOTES = {
    "get_rows": (
        "Row t is a copy of the table's row for token t; nothing is multiplied."
    ),
    "to": "The same values in another dtype.",
    "slice": "Some of the rows, as a view without a copy.",
    "full": "A matrix filled with minus infinity.",
    "triu": (
        "Keeps minus infinity right of the diagonal (later tokens); the rest becomes 0."
    ),
    "tril": "Keeps minus infinity left of the window (earlier tokens).",
    "soft_cap": "cap * tanh(x / cap): no score is larger than the cap.",
    "rms_norm": "x / sqrt(mean(x * x) + eps) * weight, for each row.",
    "linear_transformation": _LINEAR,
    "linear_transformations": _LINEAR,
    "reshape": (
        "The same values in the same order with other dimensions, without a copy."
    ),
    "rotary_embedding": (
        "Rotates each pair of values by the angle position times frequency."
    ),
    "write_cache": "Writes the new positions after the cached positions.",
    "read_cache": "All positions so far, including earlier steps.",
    "repeat_heads": (
        "Repeats each key/value head G times, once per query head that reads it."
    ),
    "transpose": "Swaps two dimensions, as a view without a copy.",
    "div": "Divides by sqrt(h), so that scores do not grow with the size of a head.",
    "softmax": "exp(s - max) / sum: each row becomes weights that add up to 1.",
    "swiglu": "silu(gate) * up, element by element.",
    "choose_experts": (
        "The experts with the largest logits, and the softmax of their logits."
    ),
    "expert_hidden": (
        "silu(w1 x) * (w3 x), or a similar product, of each chosen expert."
    ),
    "expert_outputs": "w2 hidden of each chosen expert, times its weight, added up.",
    "add": ("Element by element: the stream plus the result of the part."),
}
_NOTES_OF_STAGES = {
    (13, "matmul"): "Each query times each key, for each head: how well they match.",
    (13, "add"): "Minus infinity at later tokens, 0 elsewhere; the same for all heads.",
    (
        14,
        "matmul",
    ): "For each row of weights, the weighted sum of the values of all positions.",
    (14, "reshape"): "The heads of a token side by side.",
    (14, "transpose"): "Back to a row per token, as a view without a copy.",
    (19, "slice"): "Only the last token determines the next one.",
    (
        19,
        "linear_transformation",
    ): "One logit per token: the largest is the most probable next.",
}


class Sheet(Canvas):
    """A page that shows a stage of a run, or the whole model if the number is 0."""

    def __init__(self, run: TracedRun, number: int = 0) -> None:
        super().__init__()
        self.run = run
        self.number = number
        self.tensor_height = 2 * _PADDING + LINE * (2 if run.beside is None else 3)


def draw_heading(sheet: Sheet) -> float:
    """Draw the heading of a stage or of the model, and return its lower edge."""
    left = float(MARGIN)
    title = "The whole model, from text to text"
    code = "src/model/llama.py: LlamaTransformer"
    if sheet.number:
        stage = STAGES[sheet.number]
        badge = sheet.rect(Box(left, 24, _BADGE, _BADGE), "badge", radius=10)
        sheet.text(
            (badge.middle[0], badge.middle[1] + 7),
            str(stage.number),
            size=TITLE,
            ink="white",
            anchor="middle",
            mono=False,
            bold=True,
        )
        left += _BADGE + 14
        title = stage.name
        code = f"{stage.code.partition(':')[0]}: {stage.function}"
    sheet.text((left, 43), title, size=TITLE, mono=False, bold=True)
    sheet.text((left, 64), code, size=SMALL, ink="soft")
    return _draw_strip(sheet, 84.0) if sheet.number else 88.0


def _draw_strip(sheet: Sheet, y: float) -> float:
    """Draw all stages in a row, the sheet's own one marked, and return the lower edge."""
    width = INNER / len(STAGES)
    row = y + _LABEL_HEIGHT
    held = HOLDS.get(sheet.number, "")
    first, _, last = held.partition(" to ")
    inner = range(int(first), int(last) + 1) if held else range(0)
    for name, start, stop in _PARTS:
        middle = MARGIN + width * (start + stop - 1) / 2
        is_here = start <= sheet.number <= stop
        sheet.text(
            (middle, y + 13),
            name,
            size=SMALL,
            ink="ink" if is_here else "soft",
            anchor="middle",
            mono=False,
            bold=is_here,
        )
        for number in range(start, stop + 1):
            box = Box(MARGIN + width * (number - 1), row, width - 3, _STRIP_HEIGHT)
            is_own = number == sheet.number
            kind = "badge" if is_own else "stage" if number in inner else "dim"
            sheet.rect(box, kind, radius=3)
            sheet.text(
                (box.middle[0], row + 16),
                str(number),
                size=SMALL,
                ink="white" if is_own else "soft",
                anchor="middle",
                mono=False,
                bold=is_own,
            )
    line = row + _STRIP_HEIGHT + 6
    ends = [MARGIN + width * (_LAYER[0] - 1), MARGIN + width * _LAYER[1] - 3]
    sheet.arrow([(x, line) for x in ends], head=False)
    label = f"each of {sheet.run.sizes['L']} layers"
    at = (sum(ends) / 2, line + 17)
    sheet.text(at, label, size=SMALL, ink="soft", anchor="middle", mono=False)
    return line + 36


def draw_note(sheet: Sheet, note: str, y: float) -> float:
    """Draw sentences across the full page width, and return the lower edge."""
    for line in wrapped(note, INNER, BODY):
        sheet.text((MARGIN, y + 14), line, mono=False)
        y += 20
    return y


def finish(sheet: Sheet, y: float, letters: str, note: str) -> str:
    """Draw a note and the legend below a diagram, and return the page as SVG."""
    if note:
        y = draw_note(sheet, note, y) + 10
    run = sheet.run
    parts = []
    sizes = dict(run.sizes) | {"T": run.new_tokens, "S": run.new_tokens}
    lines = [shortened(f"Numbers: {run.model}.", INNER, SMALL)]
    if run.beside is not None and letters:
        lines[0] += f" {run.beside.name}: {run.beside.title}."
    for letter in (letter for letter in letters if letter in sizes):
        beside = "" if run.beside is None else f" ({run.beside.sizes[letter]})"
        parts.append(
            f"{letter} {LEGEND[letter]} {sizes[letter]}{beside}".replace(" ", _UNBROKEN)
        )
    legend = wrapped(" · ".join(parts), INNER, SMALL) if parts else []
    lines += [line.replace(_UNBROKEN, " ").removeprefix("· ") for line in legend]
    for number, line in enumerate(lines):
        sheet.text(
            (MARGIN, y + 18 * number + 13), line, size=SMALL, ink="soft", mono=False
        )
    return sheet.svg(STAGES[sheet.number].heading if sheet.number else "The whole model")


def draw_link(sheet: Sheet, number: int, box: Box) -> Box:
    """Draw a box with a stage's number, its name and the stages that it contains."""
    stage = STAGES[number]
    sheet.rect(box, "stage")
    y = box.middle[1] + 5
    sheet.text((box.x + 12, y), str(number), size=LARGE, mono=False, bold=True)
    sheet.text((box.x + 42, y), stage.name, size=BODY, mono=False)
    if number in HOLDS:
        at = (box.right - 12, y)
        sheet.text(
            at,
            f"stages {HOLDS[number]}",
            size=SMALL,
            ink="soft",
            anchor="end",
            mono=False,
        )
    return box


def in_columns(columns: int, lane: Lane, y: float, height: float = 0.0) -> Box:
    """Return a box that spans some of a page's columns."""
    width = _ALONE if columns == 1 else (INNER - _GAP * (columns - 1)) / columns
    first, count = lane
    return Box(
        MARGIN + first * (width + _GAP), y, count * width + (count - 1) * _GAP, height
    )


def note_on(stage: int, op: str) -> str:
    """Return a sentence that explains an op in a stage, or "" if the op is unknown."""
    return _NOTES_OF_STAGES.get((stage, op), _NOTES.get(op, ""))


def is_weight(x: TensorInfo) -> bool:
    """Return whether a tensor is one of the model's weights or biases."""
    return x.name.endswith((".weight", ".bias"))


def draw_tensor(sheet: Sheet, x: TensorInfo, place: Box, note: str = "") -> Box:
    """Draw a tensor box with an optional note, such as the tensor's origin."""
    kind, sheet_kind = ("weight", "weightsheet") if is_weight(x) else ("tensor", "sheet")
    box = sheet.rect(replace(place, height=sheet.tensor_height), kind)
    _draw_sheets(sheet, x.shape, (box.x + 6 + _GLYPH / 2, box.middle[1]), sheet_kind)
    left = box.x + _GLYPH + 12
    room = box.right - left - _PADDING
    name, *lines = tensor_lines(sheet.run, x)
    y = box.y + _PADDING + 13
    sheet.text((left, y), name, bold=True, room=room)
    for number, (line, ink) in enumerate(zip(lines, ("ink", "soft"), strict=False), 1):
        sheet.text((left, y + number * LINE), line, size=SMALL, ink=ink, room=room)
    if note:
        sheet.text((box.right - _PADDING, y), note, size=SMALL, ink="soft", anchor="end")
    return box


def tensor_lines(run: TracedRun, x: TensorInfo) -> list[str]:
    """Return the text lines in a tensor's box.

    They contain the name with letters, the sizes, and the sizes in the other model.
    """
    name = x.name  # shortened for the weights of a layer, for example to `wq.bias`
    if name.startswith("layers."):
        name = (
            name.split(".", 2)[2].removeprefix("attention.").removeprefix("feed_forward.")
        )
    name = name.removesuffix(".weight")
    letters = f" [{', '.join(x.letters)}]" if x.letters else ""
    lines = [f"{name}{letters}", f"[{', '.join(map(str, x.shape))}] {x.dtype}"]
    if run.beside is not None:
        beside = run.beside.shape(x)
        lines.append(f"{run.beside.name} {list(beside)}" if beside else "")
    return lines


def _draw_sheets(sheet: Sheet, shape: Sequence[int], middle: Point, kind: str) -> None:
    """Draw a tensor as a stack of sheets, with sizes on a logarithmic scale."""
    depth, *sides = [1] * (3 - len(shape)) + list(shape[-3:])
    height, width = (
        6 + 32 * min(1.0, math.log2(max(size, 1)) / _LARGEST_EXPONENT) for size in sides
    )
    count = min(depth, _MOST_SHEETS)
    shift = (count - 1) * _SHEET_OFFSET / 2
    for number in range(count):
        x = middle[0] - width / 2 + shift - number * _SHEET_OFFSET
        y = middle[1] - height / 2 - shift + number * _SHEET_OFFSET
        sheet.rect(Box(x, y, width, height), kind, radius=1.5)
