"""Tokens per second of many requests at once: `python -m tests.bench.bench_batch`.

Every round runs each number of requests once, beside as many sequences in batches of
llama.cpp if its package is there. Then the time to the first token with and without a
cached prefix of 1 000 tokens, and the time between the tokens of one request while a
prompt of 2 048 tokens is read. The median of the rounds counts, and ratios are those of
medians. The last line is JSON.
"""

import importlib.util
import json
import statistics
import threading
import time
from collections import defaultdict
from typing import Any

from src import ml
from src.inference import BatchEngine, SamplingArgs
from src.model import Model, load_model

from .engines import LlamaCpp, Setup
from .shapes import CHECKPOINT, find_checkpoint, find_gguf, read_options

GREEDY = SamplingArgs(temperature=0.0)
PROMPT = 32
PREFIX = 1000
LONG = 2048


def main() -> None:
    options = read_options(
        __doc__, **CHECKPOINT, counts=[1, 2, 4, 8, 16], rounds=5, tokens=8, alone=False
    )
    directory = find_checkpoint(options.shape, options.layers, options.directory)
    model = load_model(directory)
    theirs = None
    most = max(options.counts)
    if not options.alone and importlib.util.find_spec("llama_cpp") is not None:
        setup = Setup(
            directory, ml.get_num_threads(), 512 * most, find_gguf(directory), most
        )
        theirs = LlamaCpp(setup)
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(1 + options.rounds):  # the first one warms up
        for count in options.counts:
            seconds = {"ours": ours(model, count, options.tokens)}
            if theirs is not None:
                seconds["llama.cpp"] = batched(theirs, count, options.tokens)
            for name, value in seconds.items():
                if number:
                    found[f"{name} {count}"].append(count / value)
                print(f"{name} {count}: {value * 1e3:.1f} ms for a pass", flush=True)
        if number:
            measure_prompts(model, found)
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, value in medians.items():
        base = medians.get(f"{name.split()[0]} 1")
        unit = f"tokens/s, x {value / base:.2f}" if base else "s"
        print(f"{name:32} {value:8.3f} {unit}")
    print(json.dumps({"isa": ml.build_info()["isa"], "model": str(directory), **medians}))


def prompt(model: Model, number: int, length: int) -> list[int]:
    """Return tokens that differ from those of every other number."""
    return [
        (7919 * at + 104729 * number + 11) % model.args.vocab_size for at in range(length)
    ]


def ours(model: Model, count: int, tokens: int) -> float:
    """Return the seconds of a pass over one token of each request."""
    with BatchEngine(
        model, sequence_length=512, max_requests=count, speculation=False
    ) as engine:
        requests = [
            engine.submit(prompt(model, number, PROMPT), 480, GREEDY)
            for number in range(count)
        ]
        for request in requests:
            next(request)
        last = requests[-1]
        next(last)
        started = time.perf_counter()
        before = engine.counters().passes
        for _ in range(tokens):
            next(last)
        seconds = time.perf_counter() - started
        passes = engine.counters().passes - before
    return seconds / passes


def batched(engine: LlamaCpp, count: int, tokens: int) -> float:
    """Return the seconds of llama.cpp for one token of each sequence."""
    engine.reset()
    for position in range(4):
        engine.run_many([11 + position] * count, position)
    started = time.perf_counter()
    for position in range(4, 4 + tokens):
        engine.run_many([11 + position] * count, position)
    return (time.perf_counter() - started) / tokens


def measure_prompts(model: Model, found: dict[str, list[float]]) -> None:
    """Measure what a cached prefix saves, and what a long prompt costs the others."""
    args: dict[str, Any] = {"sequence_length": min(4096, model.args.max_context_length)}
    with BatchEngine(model, cache_tokens=8192, **args) as engine:
        prefix = prompt(model, 1, PREFIX)
        for name in ("first token, prefix new", "first token, prefix cached"):
            started = time.perf_counter()
            next(engine.submit([*prefix, len(found[name]) + 1], 1, GREEDY))
            found[name].append(time.perf_counter() - started)
        started = time.perf_counter()
        next(engine.submit(prompt(model, 2, 256), 1, GREEDY))
        found["a chunk of 256 tokens"].append(time.perf_counter() - started)
        other = engine.submit(prompt(model, 3, 8), 2000, GREEDY)
        next(other)
        long = engine.submit(prompt(model, 4, LONG), 1, GREEDY)
        is_read = threading.Thread(target=next, args=(long,))
        is_read.start()
        gaps = []
        while is_read.is_alive():
            started = time.perf_counter()
            next(other)
            gaps.append(time.perf_counter() - started)
        other.cancel()
        found["between tokens, long prompt"].append(max(gaps))


if __name__ == "__main__":
    main()
