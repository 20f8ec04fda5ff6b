"""Times products with block-quantized weights against the same in bfloat16.

    python -m tests.bench.bench_quantized [--shapes 1b 8b] [--rows 1 128 512] [--isa avx512]
        [--pairs 7] [--threads 2]

Every weight of the models' shapes, cut one after another from copies that together are larger than
any cache. Results are verified first, against the dequantized weight within what integers may cost.
Each round times all formats, in one order and then in the other; a ratio is taken within one round.
The last line is JSON.
"""

import argparse
import json
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from src import ml
from src.ml import roofline
from tests.csrc import calls

from .bench_kernels import sizes_of
from .kernels import linear_shapes, rate_of
from .processes import Rounds, interleave, machine
from .shapes import SHAPES, read_options

SECONDS = 0.15  # of one timing
POOL_BYTES = 160 << 20
BFLOAT16 = "bfloat16"
FORMATS = {"nf4": (ml.nf4, False), "nf4 double": (ml.nf4, True), "int8": (ml.int8_block, False)}
READ = "read roofline"


class Weights:
    """Copies of one weight in one format; `make` gives one."""

    def __init__(self, make: Any) -> None:
        first = make()
        self._all = [first] + [make() for _ in range(max(1, POOL_BYTES // first.nbytes))]
        self._next = 0
        self.nbytes = first.nbytes

    def rate(self, x: ml.Tensor) -> float:
        """Return products per second, never twice in a row with the same copy."""
        at, weights = self._next + 1, self._all
        rate, count = rate_of(
            lambda i: ml.linear_transformation(x, weights[(at + i) % len(weights)]), SECONDS
        )
        self._next += count
        return rate

    def read_rate(self) -> float:
        """Return how often per second the bytes of a copy can be read."""
        isa = str(ml.build_info()["isa"])
        parts = [part for weight in self._all[:8] for part in weight.parts()]
        return max(roofline.read_rate(parts, isa, n) for n in (1, 4, 8)) / self.nbytes

    def verify(self, name: str, x: ml.Tensor) -> None:
        """Stop if a product is not that with the dequantized weight, as far as is promised.

        x is off by 2^-15 of its largest; beside it are the additions, and nf4's levels.
        """
        weight = self._all[0]
        plain = weight.dequantize(ml.float32)
        mine = ml.linear_transformation(x, weight, ml.float32).numpy()
        expected = ml.linear_transformation(x.to(ml.float32), plain).numpy()
        largest, wide = float(np.abs(x.numpy().astype(np.float32)).max()), np.abs(plain.numpy())
        levels = 2.0**-12 * wide.max() * wide.shape[1] if weight.dtype is ml.nf4 else 0.0
        most = largest * float(2.0**-14 * wide.sum(axis=1).max() + levels)
        if not (np.abs(mine - expected) <= most).all():
            raise SystemExit(f"{name} is wrong at {weight!r}: nothing is timed")


def normal(shape: tuple[int, int], scale: float) -> ml.Tensor:
    values = np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(scale)
    return ml.Tensor.from_numpy(values.astype(ml_dtypes.bfloat16))


def bench_shape(features: int, columns: int, options: argparse.Namespace) -> dict[int, Rounds]:
    base = normal((features, columns), 0.02)
    pools = {BFLOAT16: Weights(base.copy)}
    for name, (dtype, double) in FORMATS.items():
        pools[name] = Weights(partial(ml.quantize, base, dtype, double))
    found = {}
    for rows in options.rows:
        x = normal((rows, columns), 1.0)
        for name in FORMATS:
            pools[name].verify(name, x)
        participants = {name: partial(pool.rate, x) for name, pool in pools.items()}
        if rows == 1:
            participants |= {f"{name}, {READ}": pool.read_rate for name, pool in pools.items()}
        found[rows] = interleave(participants, options.pairs)
    return found


def show(label: str, rows: int, rounds: Rounds) -> None:
    for name in FORMATS:
        median, least, greatest = rounds.ratio(name, BFLOAT16)
        line = f"{label:22s} {rows:4d} rows  {name:10s} {median:5.2f} of {BFLOAT16}"
        line += f" ({least:.2f} - {greatest:.2f})"
        if rows == 1:
            line += f"  {rounds.ratio(name, f'{name}, {READ}')[0]:.2f} of the {READ}"
        print(line, flush=True)


def main() -> None:
    options = read_options(
        __doc__, {"shapes": SHAPES}, shapes=["1b"], rows=[1, 128, 512], isa=str, pairs=7, threads=2
    )
    ml.set_num_threads(options.threads)
    if options.isa:
        calls.set_isa(options.isa)
    print(machine(), ml.build_info()["isa"], flush=True)
    lines = []
    for model in options.shapes:
        for shape in linear_shapes(sizes_of(model)):
            if len(shape.parts) > 1:
                continue  # the same weights, several in a call
            for rows, rounds in bench_shape(shape.features, shape.columns, options).items():
                show(f"{model} {shape.name}", rows, rounds)
                about = {"label": f"{model} {shape.name}", "rows": rows, **vars(shape)}
                lines.append({**about, **rounds.record()})
    print(json.dumps({"machine": machine(), "pairs": options.pairs, "lines": lines}))


if __name__ == "__main__":
    main()
