"""Times linear_transformation in bfloat16 against PyTorch's linear.

    python -m tests.bench.bench_linear [--rows 1 22 128 512] [--pairs 8] [--threads 2]

Each engine has a process of its own and the same weights and inputs. Results are verified against
float64 first. Then pairs of timings alternate in order, A B B A; a ratio is PyTorch's time over
ours within one pair. Roofs are probed before and after each number of rows, in a third process;
where they drift, only the ratios hold. The last line is JSON.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

OURS, THEIRS = "llama-bolts", "PyTorch"
SHOWN_COLUMNS = 32  # of the result, spread over all of them, for the verification
PAUSE = 0.02  # seconds: the other engine's threads stop spinning


def load(path: Path, shape: tuple[int, int]) -> Any:
    """Read bfloat16 patterns into memory of this process."""
    return np.fromfile(path, np.uint16).reshape(shape)


def our_engine(weight: Any, x: Any, threads: int) -> Callable[[int], Any]:
    """Return a function that multiplies some rows; it gives the result as float32."""
    import ml_dtypes

    from src import ml

    ml.set_num_threads(threads)
    matrix = ml.Tensor.from_numpy(weight.view(ml_dtypes.bfloat16))
    rows = ml.Tensor.from_numpy(x.view(ml_dtypes.bfloat16))
    return lambda count: ml.linear_transformation(rows.slice(0, count), matrix).numpy()


def their_engine(weight: Any, x: Any, threads: int) -> Callable[[int], Any]:
    """Return the same for PyTorch."""
    import torch

    torch.set_num_threads(threads)
    matrix = torch.from_numpy(weight.view(np.int16)).view(torch.bfloat16)
    rows = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)

    def multiply(count: int) -> Any:
        with torch.inference_mode():
            return torch.nn.functional.linear(rows[:count], matrix)

    return multiply


def serve(
    pipe: Connection, name: str, directory: Path, sizes: tuple[int, int, int], threads: int
) -> None:
    """Run one engine: answer ("show", rows) with columns, ("time", rows, calls) with seconds."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    most, columns, features = sizes
    weight = load(directory / "weight", (features, columns))
    x = load(directory / "x", (most, columns))
    multiply = (our_engine if name == OURS else their_engine)(weight, x, threads)
    while (command := pipe.recv()) is not None:
        if command[0] == "show":
            result = multiply(command[1])
            wide = result.float().numpy() if name == THEIRS else result.astype(np.float32)
            pipe.send(wide[:, :: features // SHOWN_COLUMNS])
            continue
        time.sleep(PAUSE)
        start = time.perf_counter()
        for _ in range(command[2]):
            multiply(command[1])
        pipe.send((time.perf_counter() - start) / command[2])


def serve_roofs(pipe: Connection, isa: str, threads: int) -> None:
    """Answer every request with (GB/s, GFLOPS)."""
    from .roofs import Roofs

    roofs = Roofs(isa, threads)
    while pipe.recv() is not None:
        pipe.send((roofs.read_gigabytes(), roofs.gigaflops()))


def ask(pipe: Connection, *command: Any) -> Any:
    """Send a command and wait for its answer."""
    pipe.send(command)
    return pipe.recv()


def write_operands(directory: Path, sizes: tuple[int, int, int]) -> tuple[Any, Any]:
    """Write random bfloat16 operands; return them as float64: all of x, the shown weight rows."""
    most, columns, features = sizes
    generator = np.random.default_rng(0)
    wide = {}
    for name, shape in (("weight", (features, columns)), ("x", (most, columns))):
        values = generator.standard_normal(shape, np.float32)
        patterns = (values.view(np.uint32) >> 16).astype(np.uint16)
        patterns.tofile(directory / name)
        kept = patterns[:: features // SHOWN_COLUMNS] if name == "weight" else patterns
        wide[name] = (kept.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return wide["x"], wide["weight"]


def verify(pipes: dict[str, Connection], x: Any, weight: Any, rows: list[int]) -> None:
    """Stop if an engine's result is off by more than its rounding and a little float32 error."""
    for name, pipe in pipes.items():
        for count in rows:
            shown = ask(pipe, "show", count).astype(np.float64)
            expected = x[:count] @ weight.T
            magnitude = np.abs(x[:count]) @ np.abs(weight.T)
            bound = 2.0**-8 * np.abs(expected) + 2.0**-16 * magnitude
            if not (np.abs(shown - expected) <= bound).all():
                raise SystemExit(f"{name} is wrong at {count} rows: nothing is timed")
    print(f"verified against float64: {', '.join(pipes)} at {rows} rows")


def time_pairs(pipes: dict[str, Connection], rows: int, pairs: int) -> dict[str, list[float]]:
    """Time both engines in turn, A B B A."""
    seconds: dict[str, list[float]] = {name: [] for name in pipes}
    # About a third of a second for each timing.
    calls = {name: max(1, int(0.33 / ask(pipe, "time", rows, 1))) for name, pipe in pipes.items()}
    for pair in range(pairs):
        for name in list(pipes) if pair % 2 == 0 else list(pipes)[::-1]:
            seconds[name].append(ask(pipes[name], "time", rows, calls[name]))
    return seconds


def summarise(
    rows: int, sizes: tuple[int, int, int], seconds: dict[str, list[float]], roofs: list[Any]
) -> dict[str, Any]:
    """Turn timings into the ratio and rates of one line."""
    _, columns, features = sizes
    ratios = [t / o for o, t in zip(seconds[OURS], seconds[THEIRS], strict=True)]
    ours, theirs = (statistics.median(seconds[name]) for name in (OURS, THEIRS))
    gigaflop = 2e-9 * rows * columns * features
    return {
        "rows": rows,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "ours_ms": 1e3 * ours,
        "theirs_ms": 1e3 * theirs,
        "ours_gflops": gigaflop / ours,
        "theirs_gflops": gigaflop / theirs,
        "ours_gbytes": 2e-9 * columns * features / ours,
        "theirs_gbytes": 2e-9 * columns * features / theirs,
        "read_roof_gbytes": [before_after[0] for before_after in roofs],
        "peak_gflops": [before_after[1] for before_after in roofs],
    }


def show(line: dict[str, Any]) -> None:
    """Print one line of the table."""
    low, high = line["ratio_range"]
    roofs = " ".join(f"{rate:.1f}" for rate in line["read_roof_gbytes"])
    peaks = " ".join(f"{rate:.0f}" for rate in line["peak_gflops"])
    print(
        f"{line['rows']:4d} rows  {line['ratio']:5.2f} x PyTorch ({low:.2f} to {high:.2f})  "
        f"ours {line['ours_ms']:8.2f} ms {line['ours_gflops']:6.1f} GFLOPS "
        f"{line['ours_gbytes']:5.1f} GB/s  PyTorch {line['theirs_ms']:8.2f} ms "
        f"{line['theirs_gflops']:6.1f} GFLOPS  read roof {roofs} GB/s  peak {peaks} GFLOPS",
        flush=True,
    )


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 22, 128, 512])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--features", type=int, default=14336)
    return parser.parse_args()


def start(target: Callable[..., None], *arguments: Any) -> tuple[Connection, Any]:
    """Start a process that answers through a pipe; the pipe's other end is its first argument."""
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    process = context.Process(target=target, args=(end, *arguments))
    process.start()
    return pipe, process


def measure(options: argparse.Namespace, directory: Path, isa: str) -> list[dict[str, Any]]:
    """Verify and time both engines; return a line for each number of rows."""
    sizes = (max(options.rows), options.columns, options.features)
    x, weight = write_operands(directory, sizes)
    served = {
        name: start(serve, name, directory, sizes, options.threads) for name in (OURS, THEIRS)
    }
    roofs = start(serve_roofs, isa, options.threads)
    pipes = {name: pipe for name, (pipe, _) in served.items()}
    verify(pipes, x, weight, options.rows)
    lines = []
    for rows in options.rows:
        before = ask(roofs[0], "probe")
        seconds = time_pairs(pipes, rows, options.pairs)
        lines.append(summarise(rows, sizes, seconds, [before, ask(roofs[0], "probe")]))
        show(lines[-1])
    for pipe, process in (*served.values(), roofs):
        pipe.send(None)
        process.join()
    return lines


def main() -> None:
    """Print the table, and then JSON."""
    options = parse_options()

    from src.ml import native

    info = native.build_info()
    with tempfile.TemporaryDirectory() as name:
        lines = measure(options, Path(name), str(info["isa"]))
    shape = {"columns": options.columns, "features": options.features, "dtype": "bfloat16"}
    print(json.dumps({**shape, "pairs": options.pairs, "build": info, "lines": lines}))


if __name__ == "__main__":
    main()
