"""Times the products of one layer as ranks divide them: `python -m tests.bench.bench_rank_times`.

Writes tools/rank_times.json, which the simulation in tools/simulation.py reads: the seconds of all
products of a rank's share of a layer, for one token and for a chunk of 512, by the number of ranks.
Weights are taken from a pool one after the other, so that none is found in a cache. A share that
does not fit the pool is left out; the simulation takes those of more ranks in proportion.
"""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from src import ml
from src.model.ranks import bounds_of
from tools.simulation import MODELS, TIMES, layer_shares

POOL_BYTES = 1 << 30
MOST_CHUNK_BYTES = 1 << 28  # of weights that a chunk is multiplied by
CHUNK = 512
ROUNDS = 6


def seconds(
    pool: ml.Tensor, shares: "list[tuple[tuple[int, ...], int]]", T: int, runs: int
) -> float:
    """Returns the time of all products of one layer, the best of several runs."""
    at, best = 0, float("inf")
    inputs = {columns: ml.ones((T, columns), dtype=ml.bfloat16) for _, columns in shares}
    for _ in range(runs):
        weights = []
        for rows, columns in shares:
            count = sum(rows) * columns
            at = at if at + count <= pool.size else 0
            places = np.cumsum([0, *rows]) * columns + at
            ends = itertools.pairwise(places.tolist())
            weights.append([pool.slice(a, b).reshape(-1, columns) for a, b in ends])
            at += count
        began = time.perf_counter()
        for (_, columns), group in zip(shares, weights, strict=True):
            ml.linear_transformations(inputs[columns], group)
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    values = np.random.default_rng(0).standard_normal(1 << 20, np.float32) / 64
    pool = ml.Tensor.from_numpy(
        np.tile(values.astype(ml_dtypes.bfloat16), POOL_BYTES // (2 * values.size))
    )
    times: dict[str, Any] = {name: {"token": {}, "chunk": {}} for name in MODELS}
    for number, (name, args), ranks in itertools.product(
        range(ROUNDS), MODELS.items(), (1, 2, 4, 8, 16, 32, 64)
    ):  # by turns: the rate of a virtual machine's memory changes from minute to minute
        shares = layer_shares(bounds_of(args, ranks), args)
        nbytes = 2 * sum(sum(rows) * columns for rows, columns in shares)
        for kind, most, tokens, every in (
            ("token", POOL_BYTES, 1, 1), ("chunk", MOST_CHUNK_BYTES, CHUNK, 3),
        ):  # fmt: skip
            if nbytes <= most and number % every == 0:
                each = seconds(pool, shares, tokens, 3 if tokens == 1 else 1)
                best = times[name][kind]
                best[str(ranks)] = round(min(best.get(str(ranks), each), each), 6)
    kernels = {"threads": ml.get_num_threads(), "isa": ml.build_info()["isa"]}
    Path(TIMES).write_text(json.dumps(kernels | times, indent=1) + "\n")


if __name__ == "__main__":
    main()
