"""What every diagram has: its heading, and the meaning of its letters."""

from ..trace import STAGES, Stage
from ..trace.events import HOLDS, LEGEND
from .canvas import BODY, LARGE, MARGIN, SMALL, TITLE, WIDTH, Box, Canvas, shortened, wrapped
from .run import TracedRun

_BADGE = 44.0


def draw_heading(canvas: Canvas, stage: Stage | None, title: str = "") -> float:
    """Draw the number, the name and the code of a stage, or a title; returns where it ends."""
    left = float(MARGIN)
    if stage is not None:
        badge = canvas.rect(Box(left, 24, _BADGE, _BADGE), "badge", radius=10)
        canvas.text(
            (badge.middle[0], badge.middle[1] + 7), str(stage.number), size=TITLE, ink="white",
            anchor="middle", mono=False, bold=True,
        )  # fmt: skip
        left += _BADGE + 14
        title = stage.name
    canvas.text((left, 43), title, size=TITLE, mono=False, bold=True)
    said = "src/model/llama.py: LlamaTransformer"
    if stage is not None:
        said = f"{stage.code.partition(':')[0]}: {stage.function}"
    canvas.text((left, 64), said, size=SMALL, ink="soft")
    return 88.0


def draw_note(canvas: Canvas, note: str, y: float) -> float:
    """Write sentences over the width of the page; returns where they end."""
    for line in wrapped(note, WIDTH - 2 * MARGIN, BODY):
        canvas.text((MARGIN, y + 14), line, mono=False)
        y += 20
    return y


def draw_letters(canvas: Canvas, run: TracedRun, letters: str, y: float) -> None:
    """Draw what letters stand for, and how large they are in this run."""
    sizes = dict(run.sizes) | {"T": run.new_tokens, "S": run.new_tokens}
    lines = [shortened(f"Numbers: {run.model}.", WIDTH - 2 * MARGIN, SMALL)]
    if run.beside is not None and letters:
        lines[0] += f" {run.beside.name}: {run.beside.title}."
    parts = []
    for letter in (letter for letter in letters if letter in sizes):
        beside = "" if run.beside is None else f" ({run.beside.sizes[letter]})"
        parts.append(f"{letter} {LEGEND[letter]} {sizes[letter]}{beside}")
    lines += wrapped(" · ".join(parts), WIDTH - 2 * MARGIN, SMALL) if parts else []
    for number, line in enumerate(lines):
        at = (float(MARGIN), y + 18 * number + 13)
        canvas.text(at, line, size=SMALL, ink="soft", mono=False)


def draw_link(canvas: Canvas, number: int, box: Box) -> Box:
    """Draw a stage as a box with its number, its name, and the stages that it holds."""
    stage = STAGES[number]
    canvas.rect(box, "stage")
    y = box.middle[1] + 5
    canvas.text((box.x + 12, y), str(number), size=LARGE, mono=False, bold=True)
    canvas.text((box.x + 42, y), stage.name, size=BODY, mono=False)
    if number in HOLDS:
        at = (box.right - 12, y)
        canvas.text(at, f"stages {HOLDS[number]}", size=SMALL, ink="soft", anchor="end", mono=False)
    return box
