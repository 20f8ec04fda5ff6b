"""Draws the plots of the chapter on rotary embedding: `python -m tools.rope_plots`.

The numbers come from the code that the engine runs, `src/model/rope.py`.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from src.model.args import RopeScaling
from src.model.rope import inverse_frequencies

from .pages import ROOT
from .plots import Axis, Chart, Series, svg, write_plots

FOLDER = ROOT / "docs" / "plots"
_HEAD = 128  # of the 8B
_THETA = 500000.0
_LLAMA_2_THETA = 10000.0
_ORIGINAL = 8192

Frequencies = npt.NDArray[np.float64]


@cache
def frequencies(theta: float = _THETA, scaling: RopeScaling | None = None) -> Frequencies:
    """Returns the radians per position of each pair of a head of the 8B: [h/2]."""
    return inverse_frequencies(_HEAD, theta, scaling).numpy().astype(np.float64)


def _powers_of_ten(most: int) -> list[tuple[float, str]]:
    names = ["1", "10", "100", "1 000", "10 000", "100 000", "1 M", "10 M"]
    return [(10.0**n, name) for n, name in enumerate(names[: most + 1])]


def turns() -> str:
    """Draws one pair of a query at the first positions: a fast pair and a slow one."""
    charts = []
    for pair in (0, 12):
        step = float(frequencies()[pair])
        circle = [(math.cos(a / 50 * math.pi), math.sin(a / 50 * math.pi)) for a in range(101)]
        series = [Series("", circle, 4, dashed=True)]
        for position in range(4):
            angle = 0.3 + position * step
            arm = [(0.0, 0.0), (math.cos(angle), math.sin(angle))]
            series.append(Series(f"at {position}", arm, position, marks=True))
        ticks = [(-1.0, "-1"), (0.0, "0"), (1.0, "1")]
        charts.append(
            Chart(
                f"Pair {pair}: {step:.3f} radians per position",
                Axis("first of the pair", -1.75, 1.75, ticks),
                Axis("second", -1.2, 1.2, ticks),
                series,
            )
        )
    return svg("A pair of numbers rotates with its position", [charts], height=334)


def waves() -> str:
    """Draws the cosine of the angle of four pairs over the first positions."""
    rows = []
    for pair, colour in ((0, 0), (8, 1), (16, 2), (32, 3)):
        step = float(frequencies()[pair])
        points = [(n / 4, math.cos(n / 4 * step)) for n in range(4 * 64 + 1)]
        rows.append(Series(f"pair {pair}", points, colour))
    chart = Chart(
        "The fast pairs tell neighbours apart, the slow ones far places",
        Axis("position", 0, 64, [(n, str(n)) for n in range(0, 65, 8)]),
        Axis("cosine of the angle", -1.1, 1.1, [(-1, "-1"), (0, "0"), (1, "1")]),
        rows,
    )
    return svg("Cosines of four pairs of a head over 64 positions", [[chart]])


def wavelengths() -> str:
    """Draws how many positions a full turn of each pair takes."""

    def line(label: str, theta: float, scaling: RopeScaling | None, colour: int) -> Series:
        steps = frequencies(theta, scaling)
        points = [(float(i), 2 * math.pi / float(step)) for i, step in enumerate(steps)]
        return Series(label, points, colour)

    series = [
        line("Llama 3.2 3B", _THETA, RopeScaling(32.0), 3),
        line("Llama 3.1", _THETA, RopeScaling(8.0), 2),
        line("Llama 3", _THETA, None, 0),
        line("Llama 2", _LLAMA_2_THETA, None, 1),
        Series("8192 and 2048", [(0, _ORIGINAL), (63, _ORIGINAL)], 4, dashed=True),
        Series("", [(0, _ORIGINAL / 4), (63, _ORIGINAL / 4)], 4, dashed=True),
    ]
    chart = Chart(
        "Positions that a full turn of each pair takes",
        Axis("pair of the head", 0, 63, [(n, str(n)) for n in (0, 8, 16, 24, 32, 40, 48, 56, 63)]),
        Axis("positions, logarithmic", 1, 1e8, _powers_of_ten(7), log=True),
        series,
    )
    return svg("Wavelengths of the pairs of a head", [[chart]], height=420)


def distances() -> str:
    """Draws how alike a query and a key are by their distance alone: the mean of all cosines."""
    places = sorted({round(10 ** (n / 60)) for n in range(60 * 5 + 1)})
    fifths = [(n / 5, f"{n / 5:g}") for n in range(-2, 6)]
    series = []
    for label, theta, colour in (("500000", _THETA, 0), ("10000", _LLAMA_2_THETA, 1)):
        steps = frequencies(theta)
        points = [(float(d), float(np.cos(d * steps).mean())) for d in places]
        series.append(Series(f"base {label}", points, colour))
    chart = Chart(
        "The score of two equal vectors falls, on the whole, with their distance",
        Axis("distance in positions, logarithmic", 1, 1e5, _powers_of_ten(5), log=True),
        Axis("score, of that at distance 0", -0.4, 1, fifths),
        series,
    )
    return svg("Score of two equal vectors by distance", [[chart]], height=340)


def scaling() -> str:
    """Draws by what each pair is slowed down, over its wavelength."""
    doublings = [(2.0**n, str(2**n)) for n in range(6)]
    series = []
    for factor, colour in ((8.0, 2), (32.0, 3)):
        before, after = frequencies(), frequencies(scaling=RopeScaling(factor))
        points = [(2 * math.pi / b, b / a) for b, a in zip(before, after, strict=True)]
        series.append(Series(f"factor {factor:g}", points, colour, marks=True))
    for edge in (_ORIGINAL / 4, _ORIGINAL):
        series.append(Series("", [(edge, 1.0), (edge, 40.0)], 4, dashed=True))
    chart = Chart(
        "How much slower each pair rotates in Llama 3.1 and 3.2",
        Axis(
            "positions for a full turn before scaling; dashed lines at 2048 and 8192",
            1, 1e7, _powers_of_ten(7), log=True,
        ),
        Axis("times slower, logarithmic", 1, 40, doublings, log=True),
        series,
    )  # fmt: skip
    return svg("Rotary scaling by wavelength", [[chart]], height=340)


PLOTS: dict[str, Callable[[], str]] = {
    "rope-turns.svg": turns,
    "rope-waves.svg": waves,
    "rope-wavelengths.svg": wavelengths,
    "rope-distances.svg": distances,
    "rope-scaling.svg": scaling,
}


if __name__ == "__main__":
    write_plots(FOLDER, PLOTS)
