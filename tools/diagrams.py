"""The committed diagrams: those of the bundled model, with the numbers of Llama 3.1 8B beside."""

from functools import cache

from src.drawing import Beside, TracedRun, draw_all

from .pages import ROOT
from .runs import SIZES_8B, bundled_events, bundled_model

FOLDER = ROOT / "diagrams"


@cache
def current_diagrams() -> dict[str, str]:
    """Returns the text of each committed diagram as it should be, by the name of its file."""
    model, events = bundled_model(), bundled_events()
    sizes = model.args.sizes | {"C": SIZES_8B["C"]}
    title = f"Llama 3.1 8B, where this prompt is {SIZES_8B['T']} tokens"
    beside = Beside("8B", title, SIZES_8B)
    return draw_all(TracedRun("the bundled model", sizes, events, beside))
