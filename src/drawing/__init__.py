"""Diagrams of a traced run: an SVG for each of the 21 stages,
and one of the whole model.
"""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from ..trace.events import STAGES
from .around import (
    draw_loop,
    draw_sampling,
    draw_text_out,
    draw_tokenization,
    draw_tokens_tensor,
)
from .flow import draw_flow
from .frame import Drawn, Sheet, draw_heading, finished
from .overview import draw_attention_stage, draw_block_stage, draw_model, draw_residual
from .run import Beside, Recorder, TracedRun

__all__ = ["Beside", "Recorder", "TracedRun", "draw_all"]

MODEL = "model.svg"

# The stages that are no flow of ops, and 0 for the whole model.
_OWN: Mapping[int, Callable[[Sheet, float], Drawn]] = {
    0: draw_model,
    1: draw_tokenization,
    2: draw_tokens_tensor,
    3: draw_loop,
    5: draw_block_stage,
    7: draw_attention_stage,
    15: draw_residual,
    18: draw_residual,
    20: draw_sampling,
    21: draw_text_out,
}


def draw_all(run: TracedRun) -> dict[str, str]:
    """Return the text of each SVG by the name of its file.

    Args:
        run: a whole answer, from its tokenization to its first token at least.
    """
    drawn = {}
    for number in (*STAGES, 0):
        sheet = Sheet(run, number)
        draw = _OWN.get(number, draw_flow)
        end = draw(sheet, draw_heading(sheet))
        name = PurePosixPath(STAGES[number].diagram).name if number else MODEL
        drawn[name] = finished(sheet, *end)
    return drawn
