"""Draw a traced run as SVG diagrams, one for each stage and one for the whole model."""

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
from .frame import DrawnEnd, Sheet, draw_heading, finish
from .overview import draw_attention_stage, draw_block_stage, draw_model, draw_residual
from .run import Beside, Recorder, TracedRun

__all__ = ["Beside", "Recorder", "TracedRun", "draw_all"]

MODEL = "model.svg"

# Drawing functions for the stages that are not drawn as a graph of ops, by stage number;
# 0 is the whole model.
_DRAWINGS: Mapping[int, Callable[[Sheet, float], DrawnEnd]] = {
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
    """Draw all diagrams of a run.

    Args:
        run: The traced run, which must cover at least everything from tokenization to the
            first new token.

    Returns:
        A mapping from file names to SVG texts.
    """
    texts = {}
    for number in (*STAGES, 0):
        sheet = Sheet(run, number)
        draw = _DRAWINGS.get(number, draw_flow)
        end = draw(sheet, draw_heading(sheet))
        name = PurePosixPath(STAGES[number].diagram).name if number else MODEL
        texts[name] = finish(sheet, *end)
    return texts
