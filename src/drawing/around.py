"""Draw the stages outside the network: tokenization, loop, sampling and text output."""

from collections.abc import Sequence
from itertools import pairwise

from ..sampling_steps import STEPS_IN_ORDER, is_worth_showing
from ..trace.records import Event
from .canvas import BODY, INNER, MARGIN, SMALL, WIDTH, Box, shortened, text_width, wrapped
from .frame import DrawnEnd, Sheet, draw_tensor

_MOST_TILES = 72
_MOST_STEPS = 8
_TILE_HEIGHT = 48.0
_GAP = 8.0
_BARS = MARGIN + 170.0  # the left edge of the bars
_BAR = 430.0
_HEIGHT = 46.0
_FLOW = 390.0  # the width of the column of sampling steps
_CHOICE = 160.0  # the height of one sampled token with all its candidates


def draw_tokenization(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 1: the prompt's text and tokens."""
    details = sheet.run.marks(sheet.number)[0].details
    for role, text in sheet.run.prompt():
        lines = wrapped(repr(text)[1:-1], INNER - 140, BODY, mono=True)
        if len(lines) > 4:  # limit the height of the diagram
            lines = [*lines[:3], f"... {len(text)} characters"]
        lines = [shortened(line, INNER - 120, BODY) for line in lines]
        box = sheet.rect(Box(MARGIN, y, INNER, 20 + 20 * len(lines)), "op")
        sheet.text((box.x + 14, y + 25), role, size=SMALL, ink="soft", bold=True)
        for number, line in enumerate(lines):
            sheet.text((box.x + 106, y + 25 + 20 * number), line)
        y = box.bottom + _GAP
    sheet.arrow([(WIDTH / 2, y - _GAP), (WIDTH / 2, y + 20)])
    ids = details["ids"]
    y = _draw_tiles(sheet, ids, y + 28)
    note = (
        f"{len(ids)} tokens: the text of each above its id. Yellow tokens are special: "
        "no text encodes to them."
    )
    return y + 2, "TV", " ".join([note, *(f"{name}." for name in details["symbols"])])


def draw_tokens_tensor(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 2: the conversion of the list of ids to a tensor."""
    (tokens,) = sheet.run.marks(sheet.number)[0].outputs
    ids = sheet.run.marks(1)[0].details["ids"]
    y = _draw_tiles(sheet, ids, y, positions=True)
    sheet.arrow([(WIDTH / 2, y), (WIDTH / 2, y + 24)])
    box = draw_tensor(sheet, tokens, Box(WIDTH / 2 - 180, y + 24, 360))
    note = (
        "Each id above its position, from 0. An id is checked against V before it "
        "selects a row."
    )
    return box.bottom + 16, "TV", note


def _draw_tiles(
    sheet: Sheet, ids: Sequence[int], y: float, *, positions: bool = False
) -> float:
    """Draw tokens as rows of tiles, and return the y coordinate of the lower edge.

    A tile shows the token's text above its id, or with `positions`, the id above the
    position.
    """
    x = float(MARGIN)
    for position, token in enumerate(ids[:_MOST_TILES]):
        lines = (
            (str(token), str(position))
            if positions
            else (sheet.run.token_text(token), str(token))
        )
        upper = shortened(lines[0], 180, BODY)
        lower = lines[1]
        width = max(text_width(upper, BODY), text_width(lower, SMALL)) + 14
        if x + width > WIDTH - MARGIN:
            x = float(MARGIN)
            y = y + _TILE_HEIGHT + _GAP
        kind = (
            "tensor" if positions else "weight" if sheet.run.is_special(token) else "op"
        )
        tile = sheet.rect(Box(x, y, width, _TILE_HEIGHT), kind)
        sheet.text((tile.middle[0], y + 20), upper, anchor="middle")
        sheet.text(
            (tile.middle[0], y + 39), lower, size=SMALL, ink="soft", anchor="middle"
        )
        x = tile.right + _GAP
    y += _TILE_HEIGHT + _GAP
    if len(ids) > _MOST_TILES:
        sheet.text((MARGIN, y + 14), f"and {len(ids) - _MOST_TILES} more", mono=False)
        y += 22
    return y


def draw_loop(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 3: the passes with their new positions and sampled tokens."""
    passes = sheet.run.passes()
    visible = passes[:_MOST_STEPS]
    longest = max(event.details["S"] for event, _ in visible)
    before: Box | None = None
    for event, token in visible:
        sheet.text((MARGIN, y + 18), f"step {event.step}", bold=True)
        sizes = f"T = {event.details['T']}, S = {event.details['S']}"
        sheet.text((MARGIN, y + 38), sizes, size=SMALL, ink="soft")
        new = _draw_bar(sheet, event, _BAR / longest, y)
        if before is not None:
            across = before.bottom + 11
            x = before.middle[0]
            to = new.middle[0]
            sheet.arrow(
                [(x, before.bottom), (x, across), (to, across), (to, y)], "residual"
            )
        before = None if token is None else _draw_chosen(sheet, token, new)
        y += _HEIGHT + 30
    note = (
        "Each step is a pass through stages 4 to 19 with its new tokens, and caches "
        "their keys and values. Stage 20 chooses a token from the last logits, and the "
        "next step reads it."
    )
    if len(passes) > _MOST_STEPS:
        note += f" {len(passes) - _MOST_STEPS} more steps follow."
    return y - 6, "", note


def _draw_bar(sheet: Sheet, event: Event, unit: float, y: float) -> Box:
    """Draw a pass as a bar of cached and new positions."""
    T = event.details["T"]
    S = event.details["S"]
    left = Box(_BARS, y, (S - T) * unit, _HEIGHT)
    new = Box(left.right, y, max(T * unit, 6), _HEIGHT)
    for box, kind, label in (
        (left, "dim", f"{S - T} cached"),
        (new, "tensor", f"{T} new"),
    ):
        if box.width:
            sheet.rect(box, kind, radius=3)
        if box.width > text_width(label, SMALL, mono=False) + 8:
            sheet.text(
                (box.middle[0], y + 28), label, size=SMALL, anchor="middle", mono=False
            )
    return new


def _draw_chosen(sheet: Sheet, token: int, new: Box) -> Box:
    """Draw the token that a pass produced."""
    left = _BARS + _BAR + 40
    out = sheet.rect(Box(left, new.y, WIDTH - MARGIN - left, _HEIGHT), "stage")
    sheet.arrow([(new.right, out.middle[1]), (out.x, out.middle[1])])
    x = out.middle[0]
    sheet.text(
        (x, out.y + 20), sheet.run.token_text(token), anchor="middle", room=out.width - 14
    )
    sheet.text((x, out.y + 38), str(token), size=SMALL, ink="soft", anchor="middle")
    return out


def draw_sampling(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 20: the sampling settings, and how each token was chosen."""
    top = y
    events = sheet.run.marks(sheet.number)
    sampling = events[0].details["sampling"]
    greedy = sampling["temperature"] == 0
    y = draw_tensor(sheet, events[0].inputs[0], Box(MARGIN, y, _FLOW), "from 19").bottom
    for step in STEPS_IN_ORDER:
        value = sampling[step.name]
        if not is_worth_showing(step.name, value):
            continue
        is_on = value != step.off
        effect = step.effect
        if greedy and not step.is_penalty:
            is_on = step.name == "temperature"
            effect = "the largest logit is chosen, without a draw" if is_on else effect
        y = _draw_setting(sheet, f"{step.name} = {value:g}", effect, y, is_on=is_on)
    token = events[0].details["token"]
    out = Box(MARGIN, y + 24, _FLOW, 46)
    sheet.arrow([(out.middle[0], y), (out.middle[0], out.y)])
    sheet.rect(out, "stage")
    method = "the largest" if greedy else "one draw"
    label = f"{method}: {sheet.run.token_text(token)} ({token})"
    sheet.text((out.x + 14, out.y + 28), label, bold=True, room=out.width - 28)
    left = MARGIN + _FLOW + 30
    y = top
    for event in events[:_MOST_STEPS]:
        # If the right column is full, continue on the left, below the sampling steps.
        if y + _CHOICE > max(out.bottom, top + _CHOICE) and left > MARGIN:
            left = float(MARGIN)
            y = max(out.bottom, y) + 20
        y = _draw_choice(sheet, event, left, y)
    note = (
        "Bars: the probability by the model, and below it the probability after the "
        "steps of the sampling. Numbers: both probabilities, and the logit. Removed "
        "tokens are struck out."
    )
    if len(events) > _MOST_STEPS:
        note += f" {len(events) - _MOST_STEPS} more draws follow."
    return max(y, out.bottom) + 8, "V", note


def _draw_setting(
    sheet: Sheet, value: str, effect: str, y: float, *, is_on: bool
) -> float:
    """Draw a sampling step with its top at `y`, and return its lower edge."""
    box = Box(MARGIN, y + 24, _FLOW, 56)
    sheet.arrow([(box.middle[0], y), (box.middle[0], box.y)])
    sheet.rect(box, "op" if is_on else "group", radius=14)
    value += "" if is_on else " (off)"
    sheet.text(
        (box.x + 14, box.y + 24), value, ink="ink" if is_on else "soft", bold=is_on
    )
    sheet.text((box.x + 14, box.y + 43), effect, size=SMALL, ink="soft", mono=False)
    return box.bottom


def _draw_choice(sheet: Sheet, event: Event, left: float, y: float) -> float:
    """Draw a token's candidates with probability bars, and return the lower edge."""
    details = event.details
    random_value = details["random"]
    method = (
        "the largest logit"
        if random_value is None
        else f"random number {random_value:.4f}"
    )
    sheet.text((left, y + 14), f"step {event.step}: {method}", mono=False, bold=True)
    y += 24
    for candidate, logit in zip(
        details["choice"]["candidates"], details["logits"], strict=True
    ):
        token = candidate["token_id"]
        chances = candidate["probabilities"]
        ink = "green" if token == details["token"] else "ink"
        token_text = shortened(
            sheet.run.token_text(token), 150 - text_width(f" {token}", SMALL), SMALL
        )
        label = f"{token_text} {token}"
        sheet.text((left, y + 15), label, size=SMALL, ink=ink, struck=not chances[-1])
        for at, (p, kind) in enumerate(((chances[0], "sheet"), (chances[-1], "badge"))):
            sheet.rect(
                Box(left + 158, y + 3 + 9 * at, max(100 * p, 0.5), 7), kind, radius=0
            )
        numbers = f"{chances[0]:.4f} {chances[-1]:.4f} {logit:.2f}"
        sheet.text((left + 264, y + 15), numbers, size=SMALL, ink="soft")
        y += 22
    return y + 14


def draw_text_out(sheet: Sheet, y: float) -> DrawnEnd:
    """Draw stage 21: each token's text, the printed text and the stop check."""
    columns = (
        (0, 150, "token"),
        (190, 220, "its text"),
        (450, 200, "shown"),
        (690, 150, "then"),
    )
    for x, width, heading in columns:
        sheet.text(
            (MARGIN + x + width / 2, y + 8),
            heading,
            ink="soft",
            anchor="middle",
            mono=False,
        )
    y += 22
    marks = sheet.run.marks(sheet.number)
    half = _MOST_STEPS // 2
    visible = marks if len(marks) <= _MOST_STEPS else [*marks[:half], *marks[-half:]]
    for event in visible:
        token = event.details["token"]
        reason = event.details["stop_reason"]
        special = sheet.run.is_special(token)
        cells = (
            (str(token), "tensor"),
            (sheet.run.token_text(token), "weight" if special else "op"),
            ("waits" if event.details["waits"] else repr(event.details["text"]), "op"),
            (
                "continues" if reason is None else f"stops: {reason}",
                "stage" if reason else "group",
            ),
        )
        for (x, width, _), (text, kind) in zip(columns, cells, strict=True):
            box = sheet.rect(Box(MARGIN + x, y, width, 36), kind)
            sheet.text((box.middle[0], y + 23), text, anchor="middle", room=width - 16)
        for (x, width, _), (right, _, _) in pairwise(columns):
            sheet.arrow([(MARGIN + x + width, y + 18), (MARGIN + right, y + 18)])
        y += 36 + _GAP
    left_out = len(marks) - len(visible)
    omission = f" {left_out} steps in the middle are left out." if left_out else ""
    note = (
        "Bytes wait until their character is complete, so that an emoji of several "
        "tokens appears at once. The answer stops at an end token, a stop text, or a "
        f"limit.{omission}"
    )
    symbols = dict.fromkeys(name for event in marks for name in event.details["symbols"])
    return y + 8, "", " ".join([note, *(f"{name}." for name in symbols)])
