"""How a tensor is drawn: a box with its sheets, its name, its letters and its numbers."""

import math
from collections.abc import Sequence

from ..trace import TensorInfo
from .canvas import BODY, SMALL, Box, Canvas, shortened
from .run import TracedRun

LINE = 18.0
_PADDING = 9.0
_GLYPH = 42.0  # the square that the sheets stand in
_LARGEST_EXPONENT = 17  # 128256 is the largest size that occurs
_SHEET_OFFSET = 4.0
_MOST_SHEETS = 3


def tensor_height(run: TracedRun) -> float:
    """Return the height of a tensor's box."""
    return 2 * _PADDING + LINE * (2 if run.beside is None else 3)


def draw_tensor(canvas: Canvas, run: TracedRun, x: TensorInfo, box: Box, note: str = "") -> Box:
    """Draw a tensor in a box of `tensor_height`, with a note such as where it comes from."""
    kind = "weight" if x.name.endswith((".weight", ".bias")) else "tensor"
    canvas.rect(box, kind)
    draw_sheets(canvas, x.shape, (box.x + 6 + _GLYPH / 2, box.middle[1]), f"{kind}sheet")
    left = box.x + _GLYPH + 12
    room = box.right - left - _PADDING
    lines = tensor_lines(run, x)
    y = box.y + _PADDING + 13
    canvas.text((left, y), shortened(lines[0], room, BODY), bold=True)
    for number, line in enumerate(lines[1:], 1):
        ink = "ink" if number == 1 else "soft"
        canvas.text((left, y + number * LINE), shortened(line, room, SMALL), size=SMALL, ink=ink)
    if note:
        canvas.text((box.right - _PADDING, y), note, size=SMALL, ink="soft", anchor="end")
    return box


def tensor_lines(run: TracedRun, x: TensorInfo) -> list[str]:
    """Return what stands in a tensor's box: name and letters, numbers, another model's numbers."""
    letters = f" [{', '.join(x.letters)}]" if x.letters else ""
    numbers = f"[{', '.join(map(str, x.shape))}] {x.dtype}"
    lines = [f"{short_name(x.name)}{letters}", numbers]
    if run.beside is not None:
        beside = run.beside.shape(x)
        lines.append(f"{run.beside.name} {list(beside)}" if beside else "")
    return lines


def short_name(name: str) -> str:
    """Return the name of a tensor; of a weight of a layer its last part, such as `wq.bias`."""
    if name.startswith("layers."):
        name = name.split(".", 2)[2].removeprefix("attention.").removeprefix("feed_forward.")
    return name.removesuffix(".weight")


def draw_sheets(
    canvas: Canvas, shape: Sequence[int], middle: tuple[float, float], kind: str
) -> None:
    """Draw a tensor as sheets of rows and columns, as large as the logarithms of its sizes."""
    kind = "weightsheet" if kind.startswith("weight") else "sheet"
    sizes = [1] * (3 - len(shape)) + list(shape[-3:])
    depth, height, width = sizes[0], _length(sizes[1]), _length(sizes[2])
    sheets = min(depth, _MOST_SHEETS)
    shift = (sheets - 1) * _SHEET_OFFSET / 2
    for sheet in range(sheets):
        x = middle[0] - width / 2 + shift - sheet * _SHEET_OFFSET
        y = middle[1] - height / 2 - shift + sheet * _SHEET_OFFSET
        canvas.rect(Box(x, y, width, height), kind, radius=1.5)


def _length(size: int) -> float:
    return 6 + 32 * min(1.0, math.log2(max(size, 1)) / _LARGEST_EXPONENT)
