"""Times each kernel against the roofline, and linear products against PyTorch's on
request.

    python -m tests.bench.bench_kernels [--shapes 1b 8b] [--rows 1 4 8 22 128 512] [--pytorch]
        [--isas avx512 avx2] [--pairs 5] [--threads 2] [--shares tools/kernel_rows.json]

Every weight of the models' shapes, in bfloat16, cut one after another from a mapped file
larger than any cache; and attention at the end of a long cache. Results are verified
against float64 first. Each round times all engines and both limits, memory bandwidth and
multiply-adds; a fraction is taken within one round. The last line is JSON.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from src.model.sources.meta import args_from_params
from tests.csrc import calls

from .kernels import (
    MOST_ROWS,
    OURS,
    PYTORCH,
    SHOWN_COLUMNS,
    Attention,
    Kernels,
    Linear,
    linear_shapes,
    map_pool,
    write_pool,
)
from .processes import Served, asked, interleave, machine
from .roofline import Roofline
from .shapes import SHAPES, read_options

SECONDS = 0.2  # of one timing
READ = "read roofline"
PEAK = "peak"
ATTENTION_BOUND = (
    0.02  # values have a standard deviation of 1, and are rounded to bfloat16
)


def verify_linear(
    served: dict[str, Served], pool: Path, shape: Linear, rows: list[int]
) -> None:
    """Stop if a result is off by more than its rounding and a little float32 error."""
    patterns = map_pool(pool)

    def wide(count: int, step: int) -> Any:
        part = patterns[: count * shape.columns].reshape(count, shape.columns)[::step]
        return (part.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    x = wide(max(rows), 1)
    weight = wide(shape.features, shape.features // SHOWN_COLUMNS)
    for name, engine in served.items():
        for count in rows:
            shown = engine.ask("shown", shape, count).astype(np.float64)
            expected = x[:count] @ weight.T
            magnitude = np.abs(x[:count]) @ np.abs(weight.T)
            bound = 2.0**-8 * np.abs(expected) + 2.0**-16 * magnitude
            if not (np.abs(shown - expected) <= bound).all():
                raise SystemExit(
                    f"{name} is wrong at {shape}, {count} rows: nothing is timed"
                )


def time_kernel(
    engines: dict[str, Callable[[], float]],
    roofline: Served,
    pairs: int,
    work: tuple[float, float],
    about: dict[str, Any],
) -> dict[str, Any]:
    """Time one kernel beside both limits, print its line of the table, and return it for
    JSON.

    All are rates of calls; `work` are the operations and bytes of one.
    """
    operations, nbytes = work
    limits: dict[str, Callable[[], float]] = {
        READ: lambda: roofline.ask("read_rate", 1) / nbytes,
        PEAK: lambda: (roofline.ask("multiply_rate") or np.nan) / operations,
    }
    rounds = interleave(engines | limits, pairs)
    rate = rounds.rate(OURS)
    shares = []
    for name in rounds.rates:
        median, least, greatest = rounds.ratio(OURS, name)
        if name != OURS:
            shares.append(f"{median:5.2f} of {name} ({least:.2f} - {greatest:.2f})")
    print(
        f"{about['label']:24s} {about['rows']:4d} rows {1e-9 * rate * operations:7.1f} "
        f"GFLOPS {1e-9 * rate * nbytes:6.1f} GB/s  {'  '.join(shares)}",
        flush=True,
    )
    return {**about, **rounds.record()}


def share_of_limit(rates: dict[str, list[float]]) -> float:
    """Return the median fraction of the lower limit, taken within each round."""
    limits = np.nanmin([rates[READ], rates[PEAK]], axis=0)
    return float(np.median(np.asarray(rates[OURS]) / limits))


def share_rows(lines: list[dict[str, Any]]) -> list[str]:
    """Return the fractions of the lower limit in Markdown: a row per kernel, a column per
    rows.
    """
    counts = sorted({line["rows"] for line in lines})
    table = [
        "| | " + " | ".join(f"{count} rows" for count in counts) + " |",
        "|---" * (len(counts) + 1) + "|",
    ]
    for label in dict.fromkeys(line["label"] for line in lines):
        found = {line["rows"]: line for line in lines if line["label"] == label}
        cells = [
            f"{share_of_limit(found[count]['rates']):.2f}" if count in found else ""
            for count in counts
        ]
        table.append(f"| {label} | {' | '.join(cells)} |")
    return table


def write_shares(path: Path, lines: list[dict[str, Any]]) -> None:
    shares: dict[str, dict[str, dict[int, float]]] = {}
    for line in lines:
        rows = shares.setdefault(line["isa"], {}).setdefault(line["label"], {})
        rows[line["rows"]] = round(share_of_limit(line["rates"]), 3)
    path.write_text(json.dumps(shares, indent=1) + "\n", encoding="utf-8")


def bench_linear(
    options: argparse.Namespace, isa: str, pool: Path, roofline: Served
) -> list[Any]:
    """Time every weight of the shapes with one instruction set."""
    names = [OURS, PYTORCH] if options.pytorch else [OURS]
    served = {name: Served(Kernels, name, pool, options.threads, isa) for name in names}
    lines = []
    for model in options.shapes:
        for shape in linear_shapes(args_from_params(SHAPES[model]).sizes):
            verify_linear(served, pool, shape, options.rows)
            for rows in options.rows:
                engines = asked(served, "rate", shape, rows, SECONDS)
                work = 2.0 * rows * shape.features * shape.columns, shape.nbytes
                label = f"{model} {shape.name}"
                about = {"isa": isa, "label": label, "rows": rows, **vars(shape)}
                lines.append(time_kernel(engines, roofline, options.pairs, work, about))
    for engine in served.values():
        engine.close()
    return lines


def bench_attention(options: argparse.Namespace, isa: str, roofline: Served) -> list[Any]:
    """Time attention of a decode step and of a part of a prompt, at the end of a long
    cache.
    """
    lines = []
    for model in options.shapes:
        sizes = args_from_params(SHAPES[model]).sizes
        for positions in options.positions:
            served = Served(Attention, sizes, positions, options.threads, isa)
            if not (error := served.ask("verify")) <= ATTENTION_BOUND:
                raise SystemExit(f"attention is wrong by {error}: nothing is timed")
            for rows in (1, MOST_ROWS):
                seen = rows * (positions - rows) + rows * (rows + 1) // 2
                operations = 4.0 * sizes["H"] * sizes["h"] * seen
                nbytes = 4.0 * sizes["K"] * sizes["h"] * positions
                ours = asked({OURS: served}, "rate", rows, SECONDS)
                about = {
                    "isa": isa,
                    "label": f"{model} attention at {positions}",
                    "rows": rows,
                }
                work = operations, nbytes
                lines.append(time_kernel(ours, roofline, options.pairs, work, about))
            served.close()
    return lines


def main() -> None:
    isas = [isa for isa in calls.available_isas() if isa != "portable"]
    options = read_options(
        __doc__,
        {"shapes": SHAPES},
        shapes=["1b", "8b"],
        rows=[1, 4, 8, 22, 128, MOST_ROWS],
        positions=[4096, 8192],
        isas=isas or ["portable"],
        pytorch=False,
        pairs=5,
        threads=2,
        shares=Path,
    )
    sizes = [args_from_params(SHAPES[model]).sizes for model in options.shapes]
    largest = max(shape.nbytes for each in sizes for shape in linear_shapes(each))
    lines = []
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        pool = Path(name, "pool")
        write_pool(pool, max(largest, 256 << 20))
        for isa in options.isas:
            roofline = Served(Roofline, pool, options.threads, isa)
            print(f"\n{isa}, {options.threads} threads", flush=True)
            found = bench_linear(options, isa, pool, roofline) + bench_attention(
                options, isa, roofline
            )
            print("\n" + "\n".join(share_rows(found)), flush=True)
            lines += found
            roofline.close()
    if options.shares:
        write_shares(options.shares, lines)
    print(json.dumps({"machine": machine(), "pairs": options.pairs, "lines": lines}))


if __name__ == "__main__":
    main()
