"""Draw pictures of individual stages, using the values in the run."""

import cmath
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..trace.records import Event, TensorInfo
from .canvas import INNER, LARGE, MARGIN, SMALL, Box
from .frame import Sheet, draw_note
from .run import TracedRun

_MOST_POSITIONS = 32
_CELL = 17.0
_LABEL = 150.0
_MOST_PASSES = 3
_SHOWN_VALUES = 5
_RADIUS = 56.0
_FAINTEST = 0.02  # the smallest attention weight that is drawn

HEIGHT = 92.0  # the height of a matrix product's picture
_SLOT = 96.0
_SIGN = 26.0
_OPS = ("matmul", "linear_transformation", "linear_transformations")

Array = np.ndarray[Any, Any]
Sides = tuple[tuple[str, int], tuple[str, int]]


def _mask(sheet: Sheet, y: float) -> float:
    """Draw the mask as a triangle with one row per token and one column per position."""
    return _draw_weights(sheet, y, None, "The mask: blue is 0, grey is minus infinity")


def _weights(sheet: Sheet, y: float) -> float:
    """Draw the attention weights of the head that attends most to a single other token.

    The first token and the attending token itself are not considered.
    """
    weights = sheet.run.values(13, "weights")
    last = weights[:, -1].copy()  # [H, S]
    last[:, 0] = last[:, -1] = 0.0
    head = int(last.max(axis=1).argmax())
    limits = sheet.run.limits
    window: int | None = limits.get("window")
    sink = 1 - weights[head].sum(axis=1) if limits.get("sinks") else None  # [T]
    title = f"The weights of head {head} in layer 0: stronger blue is larger, grey is 0"
    y = _draw_weights(sheet, y, weights[head], title, window, sink)
    if sink is not None:
        text = "The first column is the sink, which takes the rest of 1."
        y = draw_note(sheet, text, y)
    if window is not None:
        y = draw_note(sheet, f"The window has {window} positions.", y)
    target = int(last[head].argmax())
    ids = sheet.run.new_ids()
    texts = [
        f"{sheet.run.token_text(ids[t])} (position {t})" for t in (len(ids) - 1, target)
    ]
    return draw_note(
        sheet, f"{texts[0]} gives {last[head, target]:.3f} of 1 to {texts[1]}.", y
    )


def _draw_weights(
    sheet: Sheet,
    y: float,
    weights: Array | None,
    title: str,
    window: int | None = None,
    sink: Array | None = None,
) -> float:
    """Draw a matrix [T, S] from the first pass, or only its last rows and columns.

    Args:
        sheet: The sheet.
        y: The upper edge.
        weights: The weights [T, S], or None for 1 at all visible positions.
        title: A text above the matrix.
        window: The number of positions that a token sees, or None for all.
        sink: The weights [T] of a sink, which are an additional column, or None.
    """
    ids = sheet.run.new_ids()
    first = max(0, len(ids) - _MOST_POSITIONS)
    if first:
        title += f"; the last {_MOST_POSITIONS} of {len(ids)} positions"
    y = draw_note(sheet, f"{title}.", y) + 4
    left = MARGIN + _LABEL + (_CELL + 6 if sink is not None else 0)
    count = len(ids) - first
    for row, token in enumerate(ids[first:]):
        at = (MARGIN + _LABEL - 8, y + 13)
        sheet.text(
            at, sheet.run.token_text(token), size=SMALL, anchor="end", room=_LABEL - 16
        )
        seen = 0 if window is None else max(0, row + 1 - window)
        sheet.rect(_cells(left, y, seen, row + 1), "tensor", radius=0)
        for start, stop in ((0, seen), (row + 1, count)):
            if start < stop:
                sheet.rect(_cells(left, y, start, stop), "dim", radius=0)
        if weights is not None:
            visible = weights[first + row, first + seen : first + row + 1]
            _draw_heat(sheet, left + seen * _CELL, y, visible)
        if sink is not None:
            sheet.rect(_cells(MARGIN + _LABEL, y, 0, 1), "tensor", radius=0)
            _draw_heat(sheet, MARGIN + _LABEL, y, sink[first + row : first + row + 1])
        y += _CELL
    return draw_note(
        sheet, "Columns are the same tokens in the same order, from left to right.", y + 4
    )


def _cells(left: float, y: float, start: int, stop: int) -> Box:
    """Return the box of adjacent cells of a row."""
    return Box(left + start * _CELL, y, (stop - start) * _CELL, _CELL)


def _draw_heat(sheet: Sheet, left: float, y: float, weights: Array) -> None:
    """Draw the weights of adjacent cells of a row."""
    for column, weight in enumerate(weights.tolist()):
        if weight >= _FAINTEST:
            cell = _cells(left, y, column, column + 1)
            sheet.rect(cell, "heat", radius=0, opacity=min(1.0, weight))


def is_product(event: Event) -> bool:
    """Return whether an op is a matrix product whose matrices all have letters."""
    tensors = *event.inputs[:2], *event.outputs
    return event.op in _OPS and all(len(x.letters) >= 2 for x in tensors)


def draw_product(sheet: Sheet, event: Event, x: float, y: float) -> None:
    """Draw the three matrices in a product with their letters.

    `x` and `y` are the coordinates of the top left corner.
    """
    first, second = event.inputs[:2]
    right = _sides(sheet.run, second)
    kind = "sheet"
    if event.op != "matmul":  # the weight is stored [out, in]
        right = (right[1], right[0])
        kind = "weightsheet"
    result = _sides(sheet.run, event.outputs[0])
    matrices = (_sides(sheet.run, first), "sheet"), (right, kind), (result, "sheet")
    largest = max(size for sides, _ in matrices for _, size in sides)
    for number, (((rows, height), (columns, width)), kind) in enumerate(matrices):
        left = x + number * (_SLOT + _SIGN)
        if number:
            sign = (left - _SIGN / 2, y + HEIGHT / 2 + 14)
            sheet.text(
                sign, "×" if number == 1 else "=", size=LARGE, anchor="middle", mono=False
            )
        middle = (left + _SLOT / 2 + 12, y + HEIGHT / 2 + 9)
        sides = _length(width, largest), _length(height, largest)
        box = Box(middle[0] - sides[0] / 2, middle[1] - sides[1] / 2, *sides)
        sheet.rect(box, kind, radius=1.5)
        sheet.text((middle[0], box.y - 6), columns, size=SMALL, anchor="middle")
        sheet.text((box.x - 6, middle[1] + 4), rows, size=SMALL, anchor="end")


def _sides(run: TracedRun, x: TensorInfo) -> Sides:
    """Return the letter and size of the rows and the columns.

    The sizes are those in the other model, if there is one.
    """
    sizes = x.shape[-2:]
    if run.beside is not None:
        sizes = tuple(run.beside.shape(x)[-2:]) or sizes
    return (x.letters[-2], sizes[0]), (x.letters[-1], sizes[1])


def _length(size: int, largest: int) -> float:
    return 12 + 46 * math.log2(max(size, 1)) / max(math.log2(largest), 1)


def _product(sheet: Sheet, y: float) -> float:
    """Draw the matrix product that computes the queries."""
    sheet.text(
        (MARGIN, y + 14), "xq: each row times each row of wq", mono=False, bold=True
    )
    draw_product(sheet, sheet.run.first(8)[0], float(MARGIN), y + 24)
    y += 24 + HEIGHT + 24
    token = sheet.run.new_tokens - 1
    for stage, name in ((6, "normed"), (8, "xq"), (8, "xk"), (8, "xv")):
        row = sheet.run.values(stage, name)[token]
        numbers = ", ".join(f"{value:.4g}" for value in row[:_SHOWN_VALUES])
        line = f"{name}[{token}, :] = {numbers}, ... ({row.size} values)"
        sheet.text((MARGIN, y + 14), line, size=SMALL)
        y += 20
    return draw_note(
        sheet,
        f"xq[{token}, 0] is the sum of normed[{token}, :] times row 0 of wq, element by "
        "element.",
        y + 4,
    )


def _heads(sheet: Sheet, y: float) -> float:
    """Draw a row of queries and a row of keys, each split into heads."""
    H, K, h = (sheet.run.sizes[letter] for letter in "HKh")
    for name, heads in (("xq", H), ("xk", K)):
        title = f"a row of {name}: {heads * h} values are {heads} heads of {h}"
        sheet.text((MARGIN, y + 14), title, mono=False, bold=True)
        _draw_heads(sheet, heads, heads / H, y + 24)
        y += 76
    return y


def _draw_heads(sheet: Sheet, heads: int, share: float, y: float) -> list[Box]:
    """Draw heads side by side, filling a fraction of the page width."""
    width = share * INNER / heads
    boxes = [Box(MARGIN + head * width, y, width - 2, 34) for head in range(heads)]
    for head, box in enumerate(boxes):
        sheet.rect(box, "tensor", radius=2)
        sheet.text((box.middle[0], y + 22), str(head), size=SMALL, anchor="middle")
    return boxes


def _repeat(sheet: Sheet, y: float) -> float:
    """Draw which key/value head each query head uses."""
    H, K, G = (sheet.run.sizes[letter] for letter in "HKG")
    title = f"query head i reads key/value head i // {G}"
    sheet.text((MARGIN, y + 14), title, mono=False, bold=True)
    shared = _draw_heads(sheet, K, 1.0, y + 24)
    for head, box in enumerate(_draw_heads(sheet, H, 1.0, y + 98)):
        sheet.arrow([(box.middle[0], shared[head // G].bottom), (box.middle[0], box.y)])
    title = (
        f"Above: the {K} heads of the cache. Below: the copies for each of {H} query "
        "heads."
    )
    return draw_note(sheet, title, y + 144)


def _rotation(sheet: Sheet, y: float) -> float:
    """Draw the rotation angles of three pairs at the first pass's last position."""
    rotations = sheet.run.values(4, "rotations")
    head = sheet.run.values(10, "xq")[-1, 0]  # of the last position, after the rotation
    position = sheet.run.new_tokens - 1
    label = (
        f"three of the {sheet.run.sizes['h'] // 2} pairs of each head, at position "
        f"{position}"
    )
    sheet.text((MARGIN, y + 14), label, mono=False, bold=True)
    pairs = min(rotations.shape[1], head.size // 2)  # of the first table, if several
    for place, pair in enumerate(dict.fromkeys((0, pairs // 4, pairs - 1))):
        angle = cmath.phase(complex(rotations[-1, pair]))
        step_angle = cmath.phase(complex(rotations[min(1, position), pair])) % math.tau
        middle = (MARGIN + 130.0 + place * 270, y + 40 + _RADIUS)
        box = Box(middle[0] - _RADIUS, middle[1] - _RADIUS, 2 * _RADIUS, 2 * _RADIUS)
        sheet.rect(box, "op", radius=_RADIUS)
        sheet.arrow([middle, (box.right, middle[1])], head=False)
        end = (
            middle[0] + _RADIUS * math.cos(angle),
            middle[1] - _RADIUS * math.sin(angle),
        )
        sheet.arrow([middle, end], "residual", head=False)
        label = f"pair {pair}: {step_angle:.4g} rad per position"
        sheet.text((middle[0], box.bottom + 22), label, size=SMALL, anchor="middle")
        label = f"at {position}: {math.degrees(angle):.1f} degrees"
        sheet.text((middle[0], box.bottom + 40), label, size=SMALL, anchor="middle")
        after = complex(head[2 * pair], head[2 * pair + 1])
        # A rotation is undone by the conjugate, whichever elements formed the pair.
        before = after * complex(rotations[-1, pair]).conjugate()
        for number, (name, value) in enumerate((("before", before), ("after", after))):
            line = f"{name:6} ({value.real:.3f}, {value.imag:.3f})"
            at = (middle[0], box.bottom + 60 + 18 * number)
            sheet.text(at, line, size=SMALL, anchor="middle")
    label = (
        "Grey: angle 0, as at position 0. Green: the angle of this position modulo 360 "
        "degrees, in float32. The rotation of a pair is a complex multiplication. Before "
        "and after: the pair in query head 0 of the last token."
    )
    return draw_note(sheet, label, y + 2 * _RADIUS + 130)


def _cache(sheet: Sheet, y: float) -> float:
    """Draw how each of the first passes fills the buffer for a layer's keys."""
    C = next(x.shape[0] for event in sheet.run.first(11) for x in event.outputs)
    sheet.text(
        (MARGIN, y + 14), "one buffer for all steps: cache_k", mono=False, bold=True
    )
    y += 26
    for number, (event, _token) in enumerate(sheet.run.passes()[:_MOST_PASSES]):
        T = event.details["T"]
        S = event.details["S"]
        label = f"step {event.step}: writes {S - T}:{S}, then {S} of {C} slots are filled"
        sheet.text((MARGIN, y + 13), label, size=SMALL)
        box = sheet.rect(Box(MARGIN, y + 20, INNER, 24), "group", radius=0)
        unit = INNER / C
        new = max(T * unit, 5.0)
        start = min(max((S - T) * unit, 10.0 * number), INNER - new)
        if start:
            sheet.rect(Box(box.x, box.y, start, 24), "head", radius=0)
        sheet.rect(Box(box.x + start, box.y, new, 24), "heat", radius=0)
        y += 54
    label = "Grey: slots of earlier steps. Blue: new slots. Narrow parts are drawn wider."
    return draw_note(sheet, label, y)


def _feed_forward(sheet: Sheet, y: float) -> float:
    """Draw the experts of the last token, or silu if the model has no experts."""
    return _experts(sheet, y) if "E" in sheet.run.sizes else _silu(sheet, y)


def _experts(sheet: Sheet, y: float) -> float:
    """Draw a cell for each expert, and a bar for each expert of the last token."""
    chosen = [int(n) for n in sheet.run.values(17, "experts")[-1]]
    weights = sheet.run.values(17, "expert_weights")[-1].tolist()
    count = sheet.run.sizes["E"]
    sheet.text((MARGIN, y + 14), "experts of the last token", mono=False, bold=True)
    cell = min(INNER / count, _CELL * 2)
    y += 26
    for expert in range(count):
        kind = "heat" if expert in chosen else "group"
        sheet.rect(Box(MARGIN + cell * expert, y, cell, 20), kind, radius=0)
    y += 30
    for expert, weight in zip(chosen, weights, strict=True):
        sheet.text((MARGIN, y + 14), f"expert {expert}", size=SMALL)
        bar = Box(MARGIN + 90, y, max(400 * weight, 1.0), 18)
        sheet.rect(bar, "heat", radius=0)
        sheet.text((bar.right + 8, y + 14), f"{weight:.3f}", size=SMALL)
        y += 24
    label = (
        "Cells: all experts, those of the last token in blue. Bars: the weights of its "
        "experts. Other tokens use other experts."
    )
    return draw_note(sheet, label, y + 4)


def _silu(sheet: Sheet, y: float) -> float:
    """Draw the silu function with some of the last token's gate values."""
    sheet.text((MARGIN, y + 14), "silu(z) = z / (1 + exp(-z))", mono=False, bold=True)
    gates = sheet.run.values(17, "gate")
    gates_shown = np.quantile(gates[-1], (0, 0.25, 0.5, 0.75, 1)).tolist()
    reach = max(6.0, *(abs(z) for z in gates_shown))
    left = MARGIN + 200.0
    unit = 200 / reach
    zero = y + 30 + 120.0

    def at(z: float) -> tuple[float, float]:
        return left + 200 + z * unit, zero - 110 / reach * z / (1 + math.exp(-z))

    sheet.arrow([(left, zero), (left + 400, zero)], head=False)
    sheet.arrow([(left + 200, y + 30), (left + 200, zero + 14)], head=False)
    sheet.arrow(
        [at(reach * step / 40) for step in range(-40, 41)], "residual", head=False
    )
    for z in gates_shown:
        x, height = at(z)
        sheet.rect(Box(x - 4, height - 4, 8, 8), "badge", radius=4)
    numbers = ", ".join(f"{z:.2f}" for z in gates_shown)
    said = (
        "Dots: the smallest gate of the last token, its quartiles and its largest gate: "
        f"{numbers}."
    )
    return draw_note(sheet, said, zero + 24)


PICTURES: Mapping[int, Callable[[Sheet, float], float]] = {
    4: _mask,
    8: _product,
    9: _heads,
    10: _rotation,
    11: _cache,
    12: _repeat,
    13: _weights,
    17: _feed_forward,
}
