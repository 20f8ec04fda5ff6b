"""A matrix product as a picture: rows of one times columns of the other."""

import math

from ..trace import TensorInfo
from .canvas import LARGE, SMALL, Box, Canvas, Point
from .run import TracedRun
from .steps import Step

HEIGHT = 92.0
_SLOT = 96.0
_SIGN = 26.0
_OPS = ("matmul", "linear_transformation", "linear_transformations")

Sides = tuple[tuple[str, int], tuple[str, int]]


def is_product(step: Step) -> bool:
    """Return whether a step is a product whose sides all have letters."""
    return step.event.op in _OPS and all(
        len(x.letters) >= 2 for x in (*step.event.inputs[:2], step.result)
    )


def draw_product(canvas: Canvas, run: TracedRun, step: Step, x: float, y: float) -> None:
    """Draw the three matrices of a product from a corner at the top left."""
    first, second = step.event.inputs[:2]
    right = _sides(run, second)
    if step.event.op != "matmul":  # the weight is stored [out, in]
        right = (right[1], right[0])
    weight = "sheet" if step.event.op == "matmul" else "weightsheet"
    matrices = (
        (_sides(run, first), "sheet"), (right, weight), (_sides(run, step.result), "sheet"),
    )  # fmt: skip
    largest = max(size for sides, _ in matrices for _, size in sides)
    for number, (sides, kind) in enumerate(matrices):
        left = x + number * (_SLOT + _SIGN)
        if number:
            sign = (left - _SIGN / 2, y + HEIGHT / 2 + 14)
            canvas.text(sign, "×" if number == 1 else "=", size=LARGE, anchor="middle", mono=False)
        _draw_matrix(canvas, sides, kind, (left, y), largest)


def _draw_matrix(canvas: Canvas, sides: Sides, kind: str, at: Point, largest: int) -> None:
    """Draw a matrix in a slot, with a letter at its left and at its top."""
    (x, y), ((rows, height), (columns, width)) = at, sides
    box_width, box_height = _length(width, largest), _length(height, largest)
    middle = (x + _SLOT / 2 + 12, y + HEIGHT / 2 + 9)
    box = Box(middle[0] - box_width / 2, middle[1] - box_height / 2, box_width, box_height)
    canvas.rect(box, kind, radius=1.5)
    canvas.text((middle[0], box.y - 6), columns, size=SMALL, anchor="middle")
    canvas.text((box.x - 6, middle[1] + 4), rows, size=SMALL, anchor="end")


def _sides(run: TracedRun, x: TensorInfo) -> Sides:
    """Return letter and size of rows and columns, for the larger model where there is one."""
    sizes = x.shape[-2:]
    if run.beside is not None:
        sizes = tuple(run.beside.shape(x)[-2:]) or sizes
    return (x.letters[-2], sizes[0]), (x.letters[-1], sizes[1])


def _length(size: int, largest: int) -> float:
    return 12 + 46 * math.log2(max(size, 1)) / max(math.log2(largest), 1)
