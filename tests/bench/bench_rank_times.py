"""What a pass takes on several machines: measured kernel times and the alpha-beta model.

    seconds = layers * (products of a rank's rows + 4 gathers) + output + its gather
    gather  = ceil(log2 ranks) * alpha + (ranks - 1) / ranks * bytes / bandwidth

`python -m tests.bench.bench_rank_times` writes rank_times.json: the seconds of all
products of the slowest rank's share of a layer, for one token and for a chunk of 512, by
the number of ranks. It prints the table of docs/PAST-ONE-MACHINE.md. Weights are taken
from a pool one after the other, so that none is found in a cache. A share that does not
fit the pool is left out; the simulation takes those of more ranks in proportion.
Attention, norms and sampling are left out: they take little beside the products of these
models.
"""

import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from src import ml
from src.model import ModelArgs
from src.model.ranks import bounds_of
from tools.runs import LLAMAS

TIMES = Path(__file__).with_name("rank_times.json")
MODELS = {name: LLAMAS[name] for name in ("8B", "70B", "405B")}
RANKS = (1, 2, 4, 8, 16, 32, 64)
ALPHA = 30e-6  # seconds of a message between machines, whatever its length
POOL_BYTES = 1 << 30
MOST_CHUNK_BYTES = 1 << 28  # of weights that a chunk is multiplied by
CHUNK = 512
ROUNDS = 6

Shares = list[tuple[tuple[int, ...], int]]


def layer_shares(args: ModelArgs, ranks: int) -> Shares:
    """Returns the products of a layer on the rank with the most rows: rows of each,
    columns.
    """
    bounds = bounds_of(args, ranks)
    Hh, Kh, D, F = (
        max(after - before for before, after in itertools.pairwise(bounds[letter]))
        for letter in ("Hh", "Kh", "D", "F")
    )
    heads = args.n_heads * args.head_dim
    return [
        ((Hh, Kh, Kh), args.dim),
        ((D,), heads),
        ((F, F), args.dim),
        ((D,), args.ffn_dim),
    ]


def elements(args: ModelArgs, ranks: int) -> int:
    """Returns the weights of such a share."""
    return sum(sum(rows) * columns for rows, columns in layer_shares(args, ranks))


def gathers(args: ModelArgs, tokens: int) -> list[int]:
    """Returns the bytes of each all-gather of a pass: 4 for each layer,
    and the logits.
    """
    layer = [
        2 * args.n_heads * args.head_dim,
        4 * args.dim,
        2 * args.ffn_dim,
        4 * args.dim,
    ]
    return [tokens * each for each in layer] * args.n_layers + [4 * args.vocab_size]


def wire_seconds(
    args: ModelArgs, ranks: int, gigabits: float, tokens: int, alpha: float = ALPHA
) -> float:
    """Returns what the all-gathers of a pass take."""
    sizes = gathers(args, tokens)
    steps = math.ceil(math.log2(ranks))
    part = (ranks - 1) / ranks
    return len(sizes) * steps * alpha + part * sum(sizes) * 8 / (gigabits * 1e9)


def product_seconds(name: str, ranks: int, kind: str) -> float:
    """Returns what the products of a "token" or a "chunk" take, as measured, or in
    proportion.
    """
    args = MODELS[name]
    times = json.loads(TIMES.read_text())[name]

    def each_weight(kind: str) -> float:
        measured = min(int(each) for each in times[kind] if int(each) >= ranks)
        return times[kind][str(measured)] / elements(args, measured)

    output = math.ceil(args.vocab_size / ranks) * args.dim  # of one position
    layers = args.n_layers * elements(args, ranks)
    return layers * each_weight(kind) + output * each_weight("token")


def speed_table() -> str:
    """Returns the table of the chapter: how many tokens a second machines like this
    compute.
    """
    lines = [f"| tokens per second | {' | '.join(f'{n} machines' for n in RANKS[1:])} |",
             f"|---|{'---:|' * len(RANKS[1:])}"]  # fmt: skip
    for name, (what, gigabits, kind) in itertools.product(MODELS, (
        ("1 Gb/s", 1, "token"), ("10 Gb/s", 10, "token"), ("100 Gb/s", 100, "token"),
        ("a prompt, 10 Gb/s", 10, "chunk"),
    )):  # fmt: skip
        tokens = CHUNK if kind == "chunk" else 1
        cells = []
        for ranks in RANKS[1:]:
            wire = wire_seconds(MODELS[name], ranks, gigabits, tokens)
            cells.append(f"{tokens / (product_seconds(name, ranks, kind) + wire):.3g}")
        lines.append(f"| {name}, {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seconds(pool: ml.Tensor, shares: Shares, T: int, runs: int) -> float:
    """Returns the time of all products of one layer, the best of several runs."""
    at = 0
    best = float("inf")
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
        range(ROUNDS), MODELS.items(), RANKS
    ):  # by turns: the rate of a virtual machine's memory changes from minute to minute
        shares = layer_shares(args, ranks)
        nbytes = 2 * elements(args, ranks)
        for kind, most, tokens, every in (
            ("token", POOL_BYTES, 1, 1), ("chunk", MOST_CHUNK_BYTES, CHUNK, 3),
        ):  # fmt: skip
            if nbytes <= most and number % every == 0:
                each = seconds(pool, shares, tokens, 3 if tokens == 1 else 1)
                best = times[name][kind]
                best[str(ranks)] = round(min(best.get(str(ranks), each), each), 6)
    kernels = {"threads": ml.get_num_threads(), "isa": ml.build_info()["isa"]}
    TIMES.write_text(json.dumps(kernels | times, indent=1) + "\n")
    print(speed_table())


if __name__ == "__main__":
    main()
