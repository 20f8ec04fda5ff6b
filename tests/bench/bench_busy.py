"""Times a model beside other programs: `python -m tests.bench.bench_busy --shape FILE`.

    [--shape 1b | DIRECTORY | FILE.gguf] [--loads 0 1 2] [--pairs 3] [--threads 1 2]
    [--prompts 128 512] [--steps 40] [--theirs FILE.gguf]

Each load is a number of programs that use a processor without end. Beside it, the default
number of threads, each of `--threads`, and llama.cpp with the default number of threads
are timed in turn, in turned order every other round. All numbers of threads must first
give the same logits, bit for bit, and llama.cpp the same largest logit. A time counts
only while others than these programs use less than an eighth of a processor; else it is
taken again. The last line is JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from src import ml

from .engines import LLAMA_CPP, OURS, Setup
from .processes import Rounds, Served, machine, print_rounds, serve
from .shapes import CHECKPOINT, find_checkpoint, read_options

BUSY = "while True: pass"
DEFAULT = "default"
# Of a processor, that other programs may use during a time that counts.
MOST_FOREIGN = 0.125
MOST_TRIES = 8


@contextmanager
def busy_programs(count: int) -> Iterator[list[int]]:
    """Run programs that use a processor without end; give their process ids."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        time.sleep(0.3)
        yield [program.pid for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()


def busy_seconds() -> float:
    """Return the processor time of this machine that was not idle."""
    fields = [
        int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    ]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def process_seconds(process: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def undisturbed_rate(
    served: Served, measure: str, ids: list[int], own: list[int]
) -> float:
    """Ask for a rate until no program but `own` has disturbed it; the last of some tries
    counts.
    """
    rate = 0.0
    for _ in range(MOST_TRIES):
        start = time.monotonic()
        before = busy_seconds() - sum(map(process_seconds, own))
        rate = served.ask(measure, ids)
        after = busy_seconds() - sum(map(process_seconds, own))
        if after - before < MOST_FOREIGN * (time.monotonic() - start):
            break
        time.sleep(0.5)
    return rate


def verify(served: dict[str, Served], ids: list[int]) -> None:
    """Stop unless all of ours have the same bits, and llama.cpp the same largest
    logit.
    """
    logits = {name: one.ask("logits", ids[:9], ids[9:12]) for name, one in served.items()}
    expected = logits[DEFAULT]
    for name, found in logits.items():
        if name == LLAMA_CPP:
            is_same = np.argmax(found) == np.argmax(expected)
        else:
            is_same = np.array_equal(found, expected)
        if not is_same:
            raise SystemExit(f"{name}: other logits than {DEFAULT}")


def main() -> None:
    options = read_options(
        __doc__,
        **CHECKPOINT,
        loads=[0, 1, 2],
        pairs=3,
        threads=[1, 2],
        prompts=[128, 512],
        steps=40,
        theirs=Path,
    )
    model = find_checkpoint(options.shape, options.layers, options.directory)
    positions = max([*options.prompts, options.steps]) + 16
    setups = {DEFAULT: Setup(model, ml.get_num_threads(), positions)}
    for threads in options.threads:
        setups[f"{threads} threads"] = Setup(model, threads, positions)
    served = {name: serve(OURS, setup) for name, setup in setups.items()}
    if options.theirs:
        setup = Setup(model, ml.get_num_threads(), positions, options.theirs)
        served[LLAMA_CPP] = serve(LLAMA_CPP, setup)
    ids = np.random.default_rng(7).integers(0, 400, positions - 16).tolist()
    verify(served, ids)
    print("machine:", machine(), flush=True)
    measures = {"decode": ("decode_rate", ids[: options.steps])}
    for length in options.prompts:
        measures[f"prompt of {length}"] = ("prefill_rate", ids[:length])
    results: dict[str, Rounds] = {}
    for number in range(options.pairs):
        for load in options.loads:
            with busy_programs(load) as programs:
                own = [one.process_id for one in served.values()] + programs
                for title, (measure, part) in measures.items():
                    rounds = results.setdefault(
                        f"{title}, beside {load} busy programs", Rounds()
                    )
                    for name in [*served] if number % 2 == 0 else [*served][::-1]:
                        rate = undisturbed_rate(served[name], measure, part, own)
                        rounds.rates.setdefault(name, []).append(rate)
    for title, rounds in sorted(results.items()):
        print_rounds(title, rounds)
    record: dict[str, Any] = {title: rounds.record() for title, rounds in results.items()}
    print(json.dumps({"machine": machine(), "results": record}))


if __name__ == "__main__":
    main()
