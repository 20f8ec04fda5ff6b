"""Draws the plots of the chapters on sampling and quantization: `python -m tools.chapter_plots`.

The numbers are those of the bundled model.
"""

from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from src import ml
from src.model import InferenceContext

from .pages import ROOT
from .plots import Axis, Chart, Series, svg, write_plots
from .runs import bundled_model

FOLDER = ROOT / "docs" / "plots"
_RANKS = 16
_TEMPERATURES = (0.6, 1.0, 2.0)
_BLOCK = 64
_BINS = 80
# How far the outermost levels of NF4 go out; from bitsandbytes, `create_normal_map`.
_OFFSET = (1 - 1 / 30 + 1 - 1 / 32) / 2

Floats = npt.NDArray[np.float64]


def temperature() -> str:
    """Draws the probabilities of the most probable first tokens of a text at three temperatures."""
    model = bundled_model()
    assert model.tokenizer is not None
    context = InferenceContext(model.args, 16)
    tensor = model.transformer.forward(context, [model.tokenizer.bos_id])
    logits: Floats = np.sort(tensor.numpy()[0].astype(np.float64))[::-1]
    series = []
    for colour, value in enumerate(_TEMPERATURES):
        weights = np.exp((logits - logits[0]) / value)
        shares = (weights / weights.sum())[:_RANKS]
        points = [(float(rank), float(p)) for rank, p in enumerate(shares, 1)]
        series.append(Series(f"temperature {value:g}", points, colour, marks=True))
    chart = Chart(
        "The most probable first tokens of a text",
        Axis("rank of the token", 1, _RANKS, [(float(n), str(n)) for n in (1, 4, 7, 10, 13, 16)]),
        Axis("probability", 0, 0.4, [(n / 10, f"{n * 10} %") for n in range(5)]),
        series,
    )
    return svg("Probabilities at three temperatures", [[chart]], height=340)


def levels() -> str:
    """Draws how weights lie between the ends of their blocks, and where levels of four bits lie."""
    x, y = Axis("weight / largest of its block", -1, 1, _ticks()), _height_axis()
    counts, edges = np.histogram(_shares_of_largest(), bins=_BINS, range=(-1, 1))
    density = counts / counts.max()
    middles = (edges[:-1] + edges[1:]) / 2
    curve = [(float(a), float(b)) for a, b in zip(middles, density, strict=True)]
    weights = Series("weights", curve, 4)
    return svg(
        "Weights in their blocks, and levels of four bits",
        [
            [Chart("Equal steps", x, y, [weights, *_marks(np.arange(-7, 8) / 7, 1)])],
            [
                Chart(
                    "NF4: close together where most weights are", x, y, [weights, *_marks(nf4(), 0)]
                )
            ],
        ],
        height=260,
    )


@cache
def _shares_of_largest() -> Floats:
    """Returns the weights of one matrix, each divided by the largest of its block of 64."""
    weight = bundled_model().tensors["layers.0.feed_forward.w1.weight"]
    assert isinstance(weight, ml.Tensor)
    blocks = weight.numpy().astype(np.float64).reshape(-1, _BLOCK)
    shares: Floats = (blocks / np.abs(blocks).max(axis=1, keepdims=True)).ravel()
    return shares


def nf4() -> Floats:
    """Returns the 16 levels of NF4: quantiles of the normal distribution, from -1 to 1.

    Source: Dettmers et al., QLoRA, 2023; bitsandbytes, functional.py, `create_normal_map`.
    """
    quantile = NormalDist().inv_cdf
    above = [quantile(p) for p in np.linspace(_OFFSET, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(_OFFSET, 0.5, 8)[:-1]]
    found = np.sort(np.array([*below, 0.0, *above]))
    scaled: Floats = found / found.max()
    return scaled


def _marks(places: Floats, colour: int) -> list[Series]:
    """Returns an upright line at each level; the first names them all."""
    return [
        Series("" if n else "levels", [(float(place), 0.0), (float(place), 0.25)], colour)
        for n, place in enumerate(places)
    ]


def _ticks() -> list[tuple[float, str]]:
    return [(n / 2, f"{n / 2:g}") for n in range(-2, 3)]


def _height_axis() -> Axis:
    return Axis("how often", 0, 1.05, [(0.0, "0"), (1.0, "most")])


PLOTS: dict[str, Callable[[], str]] = {
    "sampling-temperature.svg": temperature,
    "quantization-levels.svg": levels,
}


if __name__ == "__main__":
    write_plots(FOLDER, PLOTS)
