"""What interventions cost a decode step: `python -m tests.bench.bench_interventions`.

Each round runs one step without interventions and one with ten: three heads at zero, four
feed-forwards scaled, and a vector added to the residual stream of three layers. The steps
are interleaved, the median of the rounds counts, and ratios are those of steps of the
same round. The last line is JSON.
"""

import time

import numpy as np

from src.model import InferenceContext, Intervention, Model, intervene, load_model

from .bench_adapters import report
from .bench_batch import prompt
from .shapes import CHECKPOINT, find_checkpoint, read_options

PROMPT = 32


def main() -> None:
    options = read_options(__doc__, **CHECKPOINT, rounds=41, quantize=str)
    directory = find_checkpoint(options.shape, options.layers, options.directory)
    model = load_model(directory, quantize=options.quantize)
    kinds: dict[str, list[Intervention]] = {"without": [], "ten": ten_of(model)}
    context = InferenceContext(model.args, PROMPT + 1)
    forward = model.transformer.forward
    forward(context, prompt(model, 0, PROMPT))
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(1 + options.rounds):  # the first one warms up
        for name, interventions in kinds.items():
            context.length = PROMPT
            started = time.perf_counter()
            with intervene(model, *interventions):
                forward(context, [number + 1], PROMPT)
            if number:
                seconds[name].append(time.perf_counter() - started)
    report(seconds, directory)


def ten_of(model: Model) -> list[Intervention]:
    """Return ten interventions in different layers."""
    layers = model.args.n_layers
    vector = np.full(model.args.dim, 1e-3)
    return [
        *(Intervention.zero(model, f"layers.{n}.attention.heads[{n}]") for n in range(3)),
        *(
            Intervention.scale(model, f"layers.{n % layers}.feed_forward", 0.9)
            for n in range(3, 7)
        ),
        *(
            Intervention.add(model, f"x[layer {n % layers}]", vector)
            for n in range(7, 10)
        ),
    ]


if __name__ == "__main__":
    main()
