"""What LoRA adapters cost a pass of several requests: `python -m tests.bench.bench_adapters`.

Each round runs one pass without adapters, one with a loaded adapter that no request uses,
and one in which the requests use the adapters by turns. The passes are interleaved, the
median of the rounds counts, and ratios are those of passes of the same round. The last
line is JSON.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src import ml
from src.inference.blocks import BlockPool, Part
from src.model import Model, load_adapter, load_model
from tests.support.adapters import random_pairs, write_peft

from .bench_batch import prompt
from .shapes import CHECKPOINT, find_checkpoint, read_options

PROMPT = 32


def main() -> None:
    options = read_options(
        __doc__,
        **CHECKPOINT,
        requests=8,
        adapters=4,
        rank=16,
        rounds=21,
        quantize=str,
    )
    directory = find_checkpoint(options.shape, options.layers, options.directory)
    model = load_model(directory, quantize=options.quantize)
    with tempfile.TemporaryDirectory() as place:
        adapters = []
        for seed in range(options.adapters):
            pairs = random_pairs(model.args, options.rank, seed)
            path = write_peft(Path(place, f"a{seed}"), pairs, alpha=options.rank)
            adapters.append(((load_adapter(model, path), 1.0),))
    kinds: dict[str, list[ml.ScaledAdapters]] = {
        "without": [()],
        "unused": [()],
        "adapted": adapters,
    }
    pool = BlockPool(model, 512, 2 * options.requests * len(kinds))
    sequences = {
        name: [
            begin(pool, model, number, scaled[number % len(scaled)])
            for number in range(options.requests)
        ]
        for name, scaled in kinds.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(1 + options.rounds):  # the first one warms up
        for name, several in sequences.items():
            parts = [Part(sequence, [number + 1], 1, 1) for sequence in several]
            started = time.perf_counter()
            pool.run(parts)
            if number:
                seconds[name].append(time.perf_counter() - started)
    report(seconds, directory)


def report(seconds: Mapping[str, Sequence[float]], directory: Path) -> None:
    """Print the median of each kind of pass, and its ratio over "without" in its round.

    The last line is JSON.
    """
    base = seconds["without"]
    record: dict[str, Any] = {"isa": ml.build_info()["isa"], "model": str(directory)}
    for name, values in seconds.items():
        ratios = [value / plain for value, plain in zip(values, base, strict=True)]
        record[name] = statistics.median(values)
        record[f"{name} ratio"] = statistics.median(ratios)
        print(f"{name:10} {record[name] * 1e3:8.2f} ms  {record[f'{name} ratio']:.3f}")
    print(json.dumps(record))


def begin(pool: BlockPool, model: Model, number: int, adapters: ml.ScaledAdapters) -> Any:
    """Return a sequence whose prompt has been run."""
    ids = prompt(model, number, PROMPT)
    sequence = pool.admit(ids, 500, share=False, adapters=adapters)
    assert sequence is not None
    pool.run([Part(sequence, ids, len(ids), 1)])
    return sequence


if __name__ == "__main__":
    main()
