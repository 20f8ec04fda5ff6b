"""What a pass takes on several machines: measured kernel times and the alpha-beta model.

    seconds = layers * (products of a rank's rows + 4 gathers) + output + its gather
    gather  = ceil(log2 ranks) * alpha + (ranks - 1) / ranks * bytes / bandwidth

The products are those of `rank_times.json`, measured by `tests/bench/bench_rank_times.py`; the
slowest rank counts. Attention, norms and the sampling of a token are left out: they take little
beside the products of these models.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from src import ml
from src.model import MemoryForecast, ModelArgs, kv_cache_bytes
from src.model.args import EMBEDDINGS
from src.model.quantization import OUTPUT, quantization_of, quantized_model_bytes
from src.model.ranks import Bounds, bounds_of, own_forecast

from .pages import PageError, table

Table: TypeAlias = tuple[str, Iterable[Sequence[object]]]

TIMES = Path(__file__).with_name("rank_times.json")
NETWORK = Path(__file__).with_name("rank_network.json")  # of tests/bench/bench_rank_network.py
RANKS = (1, 2, 4, 8, 16, 32, 64)
ALPHA = 30e-6  # seconds of a message between machines, whatever its length


def llama(dim: int, layers: int, heads: int, ffn_dim: int, head_dim: int = 128) -> ModelArgs:
    """Return the sizes of a Llama 3 of Meta, with what all of them have in common."""
    return ModelArgs(
        dim, layers, heads, 8, head_dim, ffn_dim, 128256, 1e-5, 500000.0, None, 131072, ml.bfloat16
    )


MODELS = {
    "8B": llama(4096, 32, 32, 14336),
    "70B": llama(8192, 80, 64, 28672),
    "405B": llama(16384, 126, 128, 53248),
}
"""The sizes of Llama 3.1."""


def layer_shares(bounds: Bounds, args: ModelArgs) -> list[tuple[tuple[int, ...], int]]:
    """Return the products of a layer on the rank with the most rows: rows of each, columns."""

    Hh, Kh, D, F = (
        max(after - before for before, after in pairwise(bounds[letter]))
        for letter in ("Hh", "Kh", "D", "F")
    )
    heads = args.n_heads * args.head_dim
    return [((Hh, Kh, Kh), args.dim), ((D,), heads), ((F, F), args.dim), ((D,), args.ffn_dim)]


def gathers(args: ModelArgs, tokens: int) -> list[int]:
    """Return the bytes of each all-gather of a pass: 4 for each layer, and the logits."""
    heads = args.n_heads * args.head_dim
    layer = [2 * heads, 4 * args.dim, 2 * args.ffn_dim, 4 * args.dim]
    return [tokens * each for each in layer] * args.n_layers + [4 * args.vocab_size]


def weight_bytes(args: ModelArgs, is_tied: bool = True, quantize: str | None = None) -> int:
    """Return the bytes of a model's weights; those of a quantized one as it is saved.

    With tied embeddings they are what a token reads of a model that has none.
    """
    counts = {name: math.prod(shape) for name, shape in args.tensor_shapes.items()}
    if quantize is not None:
        embeddings = counts[EMBEDDINGS] * args.dtype.itemsize
        return embeddings + quantized_model_bytes(args, quantization_of(quantize))
    return args.dtype.itemsize * (sum(counts.values()) - (counts[OUTPUT] if is_tied else 0))


def wire_seconds(
    args: ModelArgs, ranks: int, gigabits: float, tokens: int = 1, alpha: float = ALPHA
) -> float:
    """Return what the all-gathers of a pass take."""
    sizes = gathers(args, tokens)
    steps, part = math.ceil(math.log2(ranks)), (ranks - 1) / ranks
    return len(sizes) * steps * alpha + part * sum(sizes) * 8 / (gigabits * 1e9)


def product_seconds(name: str, ranks: int, kind: str) -> float:
    """Return what the products of a pass take on one rank, as measured, or in proportion.

    A pass is a "token", or a "chunk" of 512 tokens.
    """
    args, times = MODELS[name], json.loads(TIMES.read_text())[name]

    def elements(count: int) -> int:
        shares = layer_shares(bounds_of(args, count), args)
        return sum(sum(rows) * columns for rows, columns in shares)

    def layer_seconds(kind: str) -> float:
        measured = min(int(each) for each in times[kind] if int(each) >= ranks)
        seconds: float = times[kind][str(measured)] * elements(ranks) / elements(measured)
        return seconds

    output = math.ceil(args.vocab_size / ranks) * args.dim / elements(ranks)  # of one position
    return args.n_layers * layer_seconds(kind) + output * layer_seconds("token")


def tokens_per_second(name: str, ranks: int, gigabits: float, kind: str) -> float:
    """Return how many tokens machines like that of the measurement compute, by kind of pass."""
    tokens = 512 if kind == "chunk" else 1
    wire = wire_seconds(MODELS[name], ranks, gigabits, tokens)
    return tokens / (product_seconds(name, ranks, kind) + wire)


def ranks_table(_page: Path, argument: str) -> str:
    """Return a table of the chapter: `gathers`, `network`, `plan` or `speed`."""
    tables = {"gathers": _gathers_table, "network": _network_table, "plan": _plan_table,
              "speed": _speed_table}  # fmt: skip
    if argument not in tables:
        raise PageError(f"generated: ranks: expected one of {', '.join(tables)}, got {argument!r}")
    return table(*tables[argument]())


def _gathers_table() -> Table:
    rows = []
    for name, args in MODELS.items():
        sizes = gathers(args, 1)
        wire = " / ".join(f"{sum(sizes) / 2 * 8 / rate * 1e-6:.1f}" for rate in (10, 25, 100))
        latency, reading = len(sizes) * ALPHA * 1e3, weight_bytes(args) / 2e11
        cells = f"{sum(sizes) / 1e6:.1f} MB", len(sizes), f"{wire} ms", f"{latency:.1f} ms"
        rows.append((name, *cells, f"{reading:.2f} s / ranks"))
    return (
        "| | gathered for a token | gathers | on the wire, 2 ranks, 10 / 25 / 100 Gb/s | "
        "their latency at 30 us | reading bfloat16 at 200 GB/s per machine |\n"
        "|---|---:|---:|---:|---:|---:|"
    ), rows


def simulated_seconds(row: Mapping[str, float]) -> float:
    """Return what the gathers of a pass take: the wire carries bytes while others are moved."""
    return row["latency"] + max(row["wire"], row["moved"])


def _network_table() -> Table:
    rows = []
    for row in json.loads(NETWORK.read_text())["passes"]:
        simulated = simulated_seconds(row)
        times = row["latency"], row["wire"], row["moved"], simulated, row["measured"]
        cells = [f"{each * 1e3:.1f} ms" for each in times]
        name = f"{row['pass']}, {row['gigabits']} Gb/s"
        rows.append([name, *cells, f"{row['measured'] / simulated:.2f}"])
    return (
        "| gathers of the 8B | latency of messages | on the wire | moved by processors | simulated "
        "| measured | measured / simulated |\n|---|---:|---:|---:|---:|---:|---:|"
    ), rows


def _plan_table() -> Table:
    rows = []
    for name, ranks, files in (("70B", 2, 8), ("70B", 4, 8), ("405B", 8, 16), ("405B", 16, 16)):
        args = MODELS[name]
        whole = MemoryForecast(args, 4096, mapped=weight_bytes(args))
        own = own_forecast(whole, 1, ranks, 1)
        merged = replace(whole, mapped=0, copied=weight_bytes(args))
        part = own_forecast(merged, files, ranks, 1)
        weights = own.mapped / 1e9
        rows.append((
            f"{name}, {ranks}", f"{weights:.0f} GB", f"{weights * 0.28125:.0f} GB",
            f"{own.args.n_heads} / {own.args.n_kv_heads}",
            f"{kv_cache_bytes(own.args, 4096) / 1e9:.2f} GB",
            f"{part.mapped / 1e9:.0f} GB mapped, {part.copied / 1e9:.0f} GB copied",
        ))  # fmt: skip
    return (
        "| model, machines | weights per machine, bfloat16 | nf4 | heads per machine | "
        "4096 positions per machine | from 8 or 16 files of Meta |\n|---|---:|---:|---:|---:|---|"
    ), rows


def _speed_table() -> Table:
    ranks, rows = RANKS[1:], []
    for name in MODELS:
        for what, rate, kind in (
            ("1 Gb/s", 1, "token"),
            ("10 Gb/s", 10, "token"),
            ("100 Gb/s", 100, "token"),
            ("a prompt, 10 Gb/s", 10, "chunk"),
        ):
            cells = [f"{tokens_per_second(name, n, rate, kind):.3g}" for n in ranks]
            rows.append([f"{name}, {what}", *cells])
    heading = f"| tokens per second | {' | '.join(f'{n} machines' for n in ranks)} |"
    return f"{heading}\n|---|{'---:|' * len(ranks)}", rows
