"""What bench_model measures; each function returns results by their titles."""

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from src.cli.bench import attention_operations, operations

from .engines import OURS, Ours, Setup
from .processes import Rounds, Served, asked, interleave, values
from .shapes import find_checkpoint

if TYPE_CHECKING:
    from .bench_model import Bench

ROOFLINE = "roofline"
CHUNK = 512
TINY_STEPS = 500


Results = dict[str, Rounds]


def prefill(bench: "Bench") -> Results:
    """Prompts from an empty cache, with logits after the last token only."""
    results: Results = {}
    for length in bench.options.prompts:
        ids = bench.ids[:length]
        participants = asked(bench.served, "prefill_rate", ids)
        work = operations(bench.args, 0, length) / length
        results[f"prefill {length}"] = _against_roofline(bench, participants, work)
    return results


def decode(bench: "Bench") -> Results:
    """Steps of one token from an empty cache on."""
    ids = bench.ids[: bench.options.steps]
    return {"decode": _against_roofline(bench, asked(bench.served, "decode_rate", ids))}


def context(bench: "Bench") -> Results:
    """Steps of one token behind a filled cache over the same behind an empty one."""
    ours = bench.served[OURS]
    ids = bench.ids[: bench.options.steps]
    participants = {
        f"at {position}": functools.partial(ours.ask, "decode_rate_at", position, ids)
        for position in (0, *bench.options.positions)
    }
    return {"decode in context": _against_roofline(bench, participants)}


def rows(bench: "Bench") -> Results:
    """Steps of a few rows with the logits of each."""
    ours = bench.served[OURS]
    count = bench.options.steps
    participants = {
        f"{number} rows": functools.partial(ours.ask, "rows_rate", number, count)
        for number in (1, 4, 8)
    }
    return {"steps of rows": _against_roofline(bench, participants)}


def attention(bench: "Bench") -> Results:
    """The last part of a long prompt; what it takes longer than the first part is
    attention.
    """
    ours = bench.served[OURS]
    ids = bench.ids[:CHUNK]
    assert len(ids) == CHUNK
    results: Results = {}
    for end in bench.options.positions:
        start = end - CHUNK
        participants = {
            "first": functools.partial(ours.ask, "chunk_rate_at", 0, ids),
            "last": functools.partial(ours.ask, "chunk_rate_at", start, ids),
        }
        work = attention_operations(bench.args, start, CHUNK)
        work -= attention_operations(bench.args, 0, CHUNK)
        found = _against_roofline(bench, participants, work)
        pairs = zip(found.rates["first"], found.rates["last"], strict=True)
        # Chunks of attention alone per second; a last part cannot be faster but by noise.
        alone = [1 / max(1 / last - 1 / first, 1e-9) for first, last in pairs]
        found.rates = {"attention": alone, **found.rates}
        results[f"attention at {end}"] = found
    return results


def calls(bench: "Bench") -> Results:
    """C calls of a decode step, and the time of it that is spent outside of them."""
    ours = bench.served[OURS]
    ids = bench.ids[: bench.options.steps]
    found = [ours.ask("calls", ids) for _ in range(bench.options.pairs)]
    return {
        "C calls of a step": values([one["calls_per_step"] for one in found], ""),
        "Python and dispatch": values(
            [one["share_outside"] for one in found], "of a step"
        ),
        "time outside of C": values([one["microseconds_outside"] for one in found], "us"),
    }


def sampling(bench: "Bench") -> Results:
    """The choice of a token by the default settings."""
    found = [
        1e3 * bench.served[OURS].ask("sampling_seconds")
        for _ in range(bench.options.pairs)
    ]
    return {"sampling": values(found, "ms")}


def ready(bench: "Bench") -> Results:
    """From the start of the command line's process to the line that says what is loaded.

    With `--beside`, the model's directory and another file of the model are timed in
    turn.
    """
    places = filter(None, (bench.directory, bench.options.beside))
    timers = {place.name: functools.partial(seconds_to_ready, place) for place in places}
    found = interleave(timers, 1 + bench.options.pairs)
    # What was cold is now warm.
    warm = {name: seconds[1:] for name, seconds in found.rates.items()}
    return {"start to ready": Rounds(warm, unit="s")}


def seconds_to_ready(path: Path) -> float:
    """Time the command line from the start of its process to the line that says what is
    loaded.
    """
    command = [sys.executable, "-m", "src.main", "-m", str(path), "--completion"]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
    }
    start = time.perf_counter()
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"x")
        process.stdin.close()
        line = process.stderr.readline()
        seconds = time.perf_counter() - start
        process.kill()
    if b"; context " not in line:
        raise SystemExit(f"the command line did not get ready: {line.decode()!r}")
    return seconds


def memory(bench: "Bench") -> Results:
    """Anonymous memory at most, less the cache, of a long context and of twice as long a
    one.
    """
    results: Results = {}
    for position in bench.options.positions:
        about = (
            bench.directory,
            bench.options.threads,
            position,
            min(CHUNK, position // 2),
        )
        command = [sys.executable, "-m", "tests.bench.engines", *map(str, about)]
        most, cache = map(int, subprocess.check_output(command).split())
        above = (most - cache) / 1e6
        results[f"memory above the cache at {position}"] = values([above], "MB")
        results[f"cache at {position}"] = values([cache / 1e6], "MB")
    return results


def tiny(bench: "Bench") -> Results:
    """Steps of a model so small that only the calls count."""
    options = bench.options
    directory = find_checkpoint("tiny", None, options.directory)
    served = Served(Ours, Setup(directory, options.threads, 1024))
    ids = [token % 512 for token in range(TINY_STEPS)]
    found = [served.ask("decode_rate", ids) for _ in range(options.pairs)]
    served.close()
    return {"tiny model": values(found, "tokens/s")}


def _against_roofline(
    bench: "Bench", participants: dict[str, Callable[[], float]], operations: float = 0.0
) -> Rounds:
    """Interleave with multiply-adds in registers, as pieces of work of so many
    operations.

    Without operations, with the reading of the bytes of one step. Both are times per
    second.
    """

    def probe() -> float:
        if operations:
            return float(bench.roofline.ask("multiply_rate") or 0.0) / operations
        return float(bench.roofline.ask("pass_rate"))

    options = bench.options
    return interleave(
        {**participants, ROOFLINE: probe}, options.pairs, probe, options.repeats
    )


ALL: dict[str, Callable[["Bench"], Results]] = {
    "decode": decode, "prefill": prefill, "context": context, "rows": rows,
    "attention": attention, "calls": calls, "sampling": sampling, "ready": ready,
    "memory": memory, "tiny": tiny,
}  # fmt: skip
ONLY_OURS = ("context", "rows", "attention", "calls", "sampling")
