"""The stages around the network: 3, the loop, and 20, the choice of a token."""

from ..trace import Event, Stage
from .canvas import BODY, MARGIN, SMALL, WIDTH, Box, Canvas, shortened, text_width
from .frame import draw_heading, draw_letters, draw_note
from .run import TracedRun
from .tensors import draw_tensor, tensor_height

_INNER = WIDTH - 2 * MARGIN
_MOST_PASSES = 8
_BARS = MARGIN + 170.0  # where the bars begin
_BAR = 430.0
_HEIGHT = 46.0
_FLOW = 400.0  # width of the steps of sampling
_STEPS = (
    ("repeat_penalty", 1.0, "makes tokens that occurred less probable"),
    ("temperature", 1.0, "divides the logits: lower is sharper"),
    ("top_k", 0, "keeps the k largest"),
    ("top_p", 1.0, "keeps the most probable up to this sum"),
    ("min_p", 0.0, "drops what is far less probable than the first"),
)


def draw_loop(run: TracedRun, stage: Stage) -> str:
    """Return the diagram of stage 3: the passes, what each reads anew, and what it gives."""
    canvas = Canvas()
    y = draw_heading(canvas, stage)
    passes = run.passes()
    shown = passes[:_MOST_PASSES]
    longest = max(event.details["S"] for event, _ in shown)
    before: Box | None = None
    for number, (event, tokens) in enumerate(shown, 1):
        said = f"pass {number}", f"T = {event.details['T']}, S = {event.details['S']}"
        canvas.text((MARGIN, y + 18), said[0], bold=True)
        canvas.text((MARGIN, y + 38), said[1], size=SMALL, ink="soft")
        new = _draw_bar(canvas, event, _BAR / longest, y)
        if before is not None:
            across = before.bottom + 11
            canvas.arrow(
                [before.bottom_middle, (before.middle[0], across), (new.middle[0], across),
                 (new.middle[0], y)], "residual",
            )  # fmt: skip
        before = _draw_chosen(canvas, run, tokens, new) if tokens else None
        y += _HEIGHT + 30
    note = (
        "Each pass runs stages 4 to 19 over its new tokens and keeps their keys and values. "
        "Stage 20 chooses a token from the last logits, and the next pass begins with it."
    )
    if len(passes) > _MOST_PASSES:
        note += f" {len(passes) - _MOST_PASSES} more passes follow."
    if any(len(tokens) > 1 for _, tokens in shown):
        note += " Where a pass gives several, the tokens after its first one had been guessed."
    y = draw_note(canvas, note, y - 6)
    draw_letters(canvas, run, "", y + 6)
    return canvas.svg(stage.heading)


def _draw_bar(canvas: Canvas, event: Event, unit: float, y: float) -> Box:
    """Draw the positions of a pass, those that are cached and those that are new."""
    T, S = event.details["T"], event.details["S"]
    left = Box(_BARS, y, (S - T) * unit, _HEIGHT)
    new = Box(left.right, y, max(T * unit, 6), _HEIGHT)
    for box, kind, said in ((left, "dim", f"{S - T} cached"), (new, "tensor", f"{T} new")):
        if box.width:
            canvas.rect(box, kind, radius=3)
        if box.width > text_width(said, SMALL, mono=False) + 8:
            canvas.text(
                (box.middle[0], y + 28), said, size=SMALL, ink="ink", anchor="middle", mono=False
            )
    return new


def _draw_chosen(canvas: Canvas, run: TracedRun, tokens: list[int], new: Box) -> Box:
    """Draw what was chosen after a pass: a token, or several where a guess was right."""
    out = Box(_BARS + _BAR + 40, new.y, WIDTH - MARGIN - _BARS - _BAR - 40, _HEIGHT)
    canvas.rect(out, "stage")
    canvas.arrow([(new.right, out.middle[1]), (out.x, out.middle[1])])
    lines = "".join(map(run.piece, tokens)), " ".join(map(str, tokens))
    piece, token = (shortened(line, out.width - 14, BODY) for line in lines)
    canvas.text((out.middle[0], out.y + 20), piece, anchor="middle")
    canvas.text((out.middle[0], out.y + 38), token, size=SMALL, ink="soft", anchor="middle")
    return out


def draw_sampling(run: TracedRun, stage: Stage) -> str:
    """Return the diagram of stage 20: the largest logits, the settings, the token."""
    canvas = Canvas()
    y = draw_heading(canvas, stage)
    event = run.marks(stage.number)[0]
    sampling = event.details["sampling"]
    greedy = sampling["temperature"] == 0
    logits = Box(MARGIN, y, _FLOW, tensor_height(run))
    draw_tensor(canvas, run, event.inputs[0], logits, "from 19")
    y = logits.bottom
    for name, off, said in _STEPS:
        is_on = sampling[name] != off
        if greedy and name != "repeat_penalty":
            is_on = name == "temperature"
            said = "the largest logit wins: nothing is drawn" if is_on else said
        y = _draw_setting(canvas, f"{name} = {sampling[name]:g}", said, y, is_on=is_on)
    token = event.details["token"]
    out = Box(MARGIN, y + 24, _FLOW, 46)
    canvas.arrow([(out.middle[0], y), (out.middle[0], out.y)])
    canvas.rect(out, "stage")
    how = "the largest" if greedy else "one draw"
    shown = shortened(f"{how}: {run.piece(token)} ({token})", out.width - 28, BODY)
    canvas.text((out.x + 14, out.y + 28), shown, bold=True)
    bottom = _draw_largest(canvas, run, event.details["largest"], token, logits.y)
    draw_letters(canvas, run, "V", max(out.bottom, bottom) + 20)
    return canvas.svg(stage.heading)


def _draw_setting(canvas: Canvas, value: str, said: str, y: float, *, is_on: bool) -> float:
    """Draw a step of sampling below a height; returns where it ends."""
    box = Box(MARGIN, y + 24, _FLOW, 56)
    canvas.arrow([(box.middle[0], y), (box.middle[0], box.y)])
    canvas.rect(box, "op" if is_on else "group", radius=14)
    ink = "ink" if is_on else "soft"
    shown = value if is_on else f"{value} (off)"
    canvas.text((box.x + 14, box.y + 24), shown, ink=ink, bold=is_on)
    canvas.text((box.x + 14, box.y + 43), said, size=SMALL, ink="soft", mono=False)
    return box.bottom


def _draw_largest(
    canvas: Canvas, run: TracedRun, largest: list[tuple[int, float]], token: int, y: float
) -> float:
    """Draw the largest logits as bars; returns where they end."""
    left = MARGIN + 450.0
    canvas.text((left, y + 14), "the largest logits", mono=False, bold=True)
    top, least = largest[0][1], largest[-1][1]
    y += 30
    for identifier, logit in largest:
        share = 0.25 + 0.75 * (logit - least) / (top - least) if top > least else 1.0
        piece = shortened(f"{run.piece(identifier)} ({identifier})", 280, SMALL)
        ink = "green" if identifier == token else "ink"
        canvas.text((left, y + 14), piece, size=SMALL, ink=ink)
        bar = Box(left, y + 22, 290 * share, 18)
        canvas.rect(bar, "sheet", radius=3)
        canvas.text((bar.right + 8, y + 36), f"{logit:.2f}", size=SMALL, ink="soft")
        y += 54
    return y
