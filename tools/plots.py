"""Draw the plots of the chapters: `python -m tools.update_docs` writes them.

The numbers are those of the bundled model and of the code that the engine runs. Needs the
`docs` extra. A file has the same bytes on each machine, and colours for a light and a
dark background.
"""

import io
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from src import ml
from src.model import InferenceContext
from src.model.args import LinearRopeScaling, RopeScaling, YarnRopeScaling
from src.model.rope import pair_frequencies

from .runs import bundled_model

# The dark counterpart of each light colour. The first colours are for series.
_COLOURS = {
    "#0969da": "#58a6ff",
    "#bc4c00": "#f0883e",
    "#1a7f37": "#3fb950",
    "#8250df": "#a371f7",
    "#59636e": "#9da5ae",
    "#ffffff": "#0d1117",
    "#1f2328": "#e6edf3",
    "#d1d9e0": "#3d444d",
}
BLUE, ORANGE, GREEN, PURPLE, GREY, _PAPER, _INK, _SOFT = _COLOURS
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "llama-bolts",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.grid": True,
    "grid.color": _SOFT,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "axes.edgecolor": _SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
}
_DARK = "\n".join(
    f'  [style*="{part}: {light}"] {{ {part}: {dark} !important }}'
    for light, dark in _COLOURS.items()
    for part in ("fill", "stroke")
)
_HEAD = 128  # of the 8B
# Written by `python -m tests.bench.bench_kernels --shares`.
_KERNEL_ROWS = Path(__file__).with_name("kernel_rows.json")
# The factors of Phi-3.5 mini (its `config.json`), which has heads of 96 elements, 4 096
# original positions, a factor of 32 and the base of Llama 2.
_LONGROPE = Path(__file__).with_name("longrope_factors.json")
_ORIGINAL = 8192  # positions of the context that the scaling starts from
# of Llama 3 and of Llama 2
_BASE_3 = 500000.0
_BASE_2 = 10000.0

Floats = npt.NDArray[np.float64]


def _svg(
    height: float, draw: Callable[..., None], rows: int = 1, columns: int = 1
) -> str:
    """Return the plot that a function draws, as SVG with a width of 9 inches."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, height))
        draw(*np.atleast_1d(figure.subplots(rows, columns)))
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    style = f"<style>\n@media (prefers-color-scheme: dark) {{\n{_DARK}\n}}\n</style>\n"
    text = written.getvalue().replace("<defs>", f"{style}<defs>", 1)
    return "\n".join(map(str.rstrip, text.split("\n")))


def _label(axes: Axes, title: str, x: str, y: str, columns: int = 1, **more: Any) -> None:
    """Set the texts of a plot, and add a legend for its lines."""
    axes.set(title=title, xlabel=x, ylabel=y, **more)
    axes.legend(ncols=columns)


def _powers_of_ten(axis: Axis, most: int) -> None:
    """Set the ticks of an axis to powers of ten, without minor ticks on either axis."""
    names = ["1", "10", "100", "1 000", "10 000", "100 000", "1 M", "10 M"][: most + 1]
    axis.set_ticks([10.0**n for n in range(most + 1)], labels=names)
    axis.axes.minorticks_off()


def _temperature(axes: Axes) -> None:
    model = bundled_model()
    assert model.tokenizer is not None
    tensor = model.transformer.forward(
        InferenceContext(model.args, 16), [model.tokenizer.bos_id]
    )
    logits: Floats = np.sort(tensor.numpy()[0].astype(np.float64))[::-1]
    for value, colour in ((0.6, BLUE), (1.0, ORANGE), (2.0, GREEN)):
        weights = np.exp((logits - logits[0]) / value)
        shares = 100 * (weights / weights.sum())[:16]
        axes.plot(
            range(1, 17), shares, "o-", color=colour, label=f"temperature {value:g}"
        )
    title = "The most probable first tokens of a text"
    x = "rank of the token"
    y = "probability in %"
    _label(axes, title, x, y, xticks=range(1, 17), ylim=(0, None))


def _levels(*rows: Axes) -> None:
    weight = bundled_model().tensors["layers.0.feed_forward.w1.weight"]
    assert isinstance(weight, ml.Tensor)
    blocks = weight.numpy().astype(np.float64).reshape(-1, 64)
    shares = (blocks / np.abs(blocks).max(axis=1, keepdims=True)).ravel()
    titles = "Equal steps", "NF4: close together where most weights are"
    marks = (np.arange(-7, 8) / 7, ml.nf4_code().numpy())
    for axes, title, places, colour in zip(
        rows, titles, marks, (ORANGE, BLUE), strict=True
    ):
        axes.hist(shares, 80, range=(-1, 1), histtype="step", color=GREY, label="weights")
        axes.vlines(places, 0, axes.get_ylim()[1] / 4, color=colour, label="levels")
        _label(axes, title, "weight / largest of its block", "frequency", yticks=[])


@cache
def _steps(base: float = _BASE_3, factor: float | None = None) -> Floats:
    """Return the radians per position for each pair in a head of the 8B: [h/2]."""
    scaling = RopeScaling(factor) if factor else None
    return pair_frequencies(_HEAD, base, scaling).numpy().astype(np.float64)


def _turns(*columns: Axes) -> None:
    circle = np.linspace(0, 2 * math.pi, 101)
    for axes, pair in zip(columns, (0, 12), strict=True):
        step = float(_steps()[pair])
        axes.plot(np.cos(circle), np.sin(circle), "--", color=GREY)
        for position, colour in enumerate((BLUE, ORANGE, GREEN, PURPLE)):
            angle = 0.3 + position * step
            arm = [0, math.cos(angle)], [0, math.sin(angle)]
            axes.plot(*arm, "o-", color=colour, label=f"at {position}")
        axes.set(aspect="equal", xlim=(-1.2, 2.2), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        title = f"Pair {pair}: {step:.3f} radians per position"
        _label(axes, title, "first of the pair", "second")


def _waves(axes: Axes) -> None:
    positions = np.arange(4 * 64 + 1) / 4
    for pair, colour in ((0, BLUE), (8, ORANGE), (16, GREEN), (32, PURPLE)):
        axes.plot(
            positions,
            np.cos(positions * _steps()[pair]),
            color=colour,
            label=f"pair {pair}",
        )
    axes.set(xticks=range(0, 65, 8), yticks=[-1, 0, 1], ylim=(-1.1, 1.6))
    title = "The fast pairs distinguish neighbours, the slow ones distant positions"
    _label(axes, title, "position", "cosine of the angle", columns=4)


def _wavelengths(axes: Axes) -> None:
    for label, steps, colour in (
        ("Llama 3.2 3B", _steps(factor=32.0), PURPLE),
        ("Llama 3.1", _steps(factor=8.0), GREEN),
        ("Llama 3", _steps(), BLUE),
        ("Llama 2", _steps(_BASE_2), ORANGE),
    ):
        axes.semilogy(2 * math.pi / steps, color=colour, label=label)
    for edge, label in ((_ORIGINAL, "8192 and 2048"), (_ORIGINAL / 4, "")):
        axes.axhline(edge, linestyle="--", color=GREY, label=label)
    _powers_of_ten(axes.yaxis, 7)
    title = "Positions that a full turn of each pair takes"
    ticks = [*range(0, 64, 8), 63]
    _label(axes, title, "pair of the head", "positions, logarithmic", xticks=ticks)


def _distances(axes: Axes) -> None:
    places = sorted({round(10 ** (n / 60)) for n in range(60 * 5 + 1)})
    for base, colour in ((_BASE_3, BLUE), (_BASE_2, ORANGE)):
        scores = np.cos(np.outer(places, _steps(base))).mean(axis=1)
        axes.semilogx(places, scores, color=colour, label=f"base {base:.0f}")
    _powers_of_ten(axes.xaxis, 5)
    title = "The score of two equal vectors falls, on the whole, with their distance"
    x = "distance in positions, logarithmic"
    y = "score relative to distance 0"
    _label(axes, title, x, y)


def _kernel_rows(axes: Axes) -> None:
    shares = json.loads(_KERNEL_ROWS.read_text(encoding="utf-8"))
    for isa, colour in zip(shares, (BLUE, ORANGE, GREEN), strict=False):
        for label, style in (("1b w1 + w3", "o-"), ("1b wq + wk + wv", "o:")):
            rows = [*map(int, shares[isa][label])]
            found = [*shares[isa][label].values()]
            axes.semilogx(
                rows, found, style, base=2, color=colour, label=f"{isa}, {label}"
            )
    ticks = [2**n for n in range(11)]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(0, 1.1)
    title = "Products of the 1B shape as a fraction of the limit"
    _label(axes, title, "rows of x, logarithmic", "of the lower limit", columns=2)


def _windows(*columns: Axes) -> None:
    seen, work = columns
    tokens = np.arange(32)
    window = 8
    for label, reach, colour in (
        ("through any number", 32, _SOFT),
        ("through two layers", 2 * (window - 1) + 1, ORANGE),
        ("through one layer", window, BLUE),
    ):
        first = np.maximum(0, tokens - reach + 1)
        widths = tokens - first + 1
        seen.barh(tokens, widths, 1.05, first - 0.5, color=colour, label=label)
    seen.invert_yaxis()
    seen.grid(visible=False)
    title = "Positions that reach a token, window 8"
    _label(seen, title, "position", "token")

    contexts = np.geomspace(100, 131072, 80)
    layers = 26
    for label, full, colour in (
        ("no windows", layers, GREY),
        ("3 of 4 layers with 4 096", layers / 4, ORANGE),
        ("5 of 6 layers with 512", layers / 6, BLUE),
    ):
        size = 4096 if colour == ORANGE else 512
        positions = full * contexts + (layers - full) * np.minimum(contexts, size)
        work.loglog(contexts, positions / layers, color=colour, label=label)
    for axis in (work.xaxis, work.yaxis):
        _powers_of_ten(axis, 5)
    work.set(xlim=(80, 160000), ylim=(80, 160000))
    title = "Positions that a token reads in a layer"
    _label(work, title, "context, logarithmic", "mean over the layers")


def _sinks(axes: Axes) -> None:
    sinks = np.linspace(-4, 12, 65).astype(np.float32)
    heads = ml.Tensor.from_numpy(sinks)
    for label, count, best, colour in (
        ("16 positions with a score of 0", 16, 0.0, BLUE),
        ("512 positions with a score of 0", 512, 0.0, ORANGE),
        ("512 positions, one of them with a score of 10", 512, 10.0, GREEN),
    ):
        scores = np.zeros((len(sinks), 1, count), np.float32)
        scores[:, :, 0] = best
        weights = ml.softmax(ml.Tensor.from_numpy(scores), sinks=heads)
        shares = 1 - weights.numpy().astype(np.float64).sum(axis=(1, 2))
        axes.plot(sinks, 100 * shares, color=colour, label=label)
    title = "The weight that a sink takes from the positions"
    _label(axes, title, "score of the sink", "% of the weight", ylim=(0, 101))


def _scalings(*columns: Axes) -> None:
    few, many = columns
    plain = _steps()
    for label, scaling, colour in (
        ("linear", LinearRopeScaling(4.0), GREY),
        ("Llama 3", RopeScaling(4.0, original_context_length=_ORIGINAL), ORANGE),
        ("YaRN", YarnRopeScaling(4.0, _ORIGINAL), BLUE),
    ):
        scaled = pair_frequencies(_HEAD, _BASE_3, scaling).numpy().astype(np.float64)
        few.plot(plain / scaled, color=colour, label=label)
    title = "Divisors for a factor of 4"
    ticks = [*range(0, 64, 16), 63]
    _label(few, title, "pair of a head of 128", "divisor", xticks=ticks, ylim=(0, 6))

    factors = json.loads(_LONGROPE.read_text(encoding="utf-8"))
    pairs = len(factors["long"])
    plain = pair_frequencies(2 * pairs, _BASE_2).numpy().astype(np.float64)
    yarn = pair_frequencies(2 * pairs, _BASE_2, YarnRopeScaling(32.0, 4096)).numpy()
    many.plot(plain / yarn, color=BLUE, label="YaRN")
    many.plot(factors["long"], color=PURPLE, label="LongRoPE, long")
    many.plot(factors["short"], color=GREEN, label="LongRoPE, up to C")
    title = "Divisors for a factor of 32"
    ticks = [*range(0, pairs, 12), pairs - 1]
    _label(many, title, "pair of a head of 96", "divisor", xticks=ticks)


def current_plots() -> dict[str, str]:
    """Return the current text of each plot, by file name."""
    return {
        "kernel-rows.svg": _svg(3.8, _kernel_rows),
        "quantization-levels.svg": _svg(5.2, _levels, rows=2),
        "attention-sinks.svg": _svg(3.0, _sinks),
        "attention-windows.svg": _svg(3.4, _windows, columns=2),
        "rope-distances.svg": _svg(3.4, _distances),
        "rope-scalings.svg": _svg(3.4, _scalings, columns=2),
        "rope-turns.svg": _svg(3.0, _turns, columns=2),
        "rope-wavelengths.svg": _svg(4.2, _wavelengths),
        "rope-waves.svg": _svg(3.0, _waves),
        "sampling-temperature.svg": _svg(3.4, _temperature),
    }
