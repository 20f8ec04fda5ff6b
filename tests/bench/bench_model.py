"""Times whole models: llama-bolts, transformers and llama.cpp on the same random weights.

    python -m tests.bench.bench_model --shape 1b [--layers N] [--pairs 8] [--threads 2]
        [--engines llama-bolts transformers llama.cpp] [--measures prefill decode ...]
        [--beside FILE.gguf]

Each engine has a process of its own, and the same weights, token ids and threads. Logits
are first verified against a float32 reference. Then timings alternate in order, A B B A,
with a probe of the machine's roofline among them; a ratio is taken within one round. The
roofline is probed before and after each measure too, and a measure during which it
drifted by more than 5 % is repeated. The last line is JSON.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from src.model import load_model
from tests.csrc import calls

from . import measures
from .engines import ENGINES, LLAMA_CPP, OURS, Setup
from .processes import Served, machine, print_rounds, serve
from .reference import Case, reference_logits, verified
from .roofline import Roofline
from .shapes import CHECKPOINT, find_checkpoint, find_gguf, read_options

VERIFIED_STEPS = 12


@dataclass
class Bench:
    """One run: what is served, what was asked for, and what has come out."""

    options: argparse.Namespace
    directory: Path
    args: Any
    served: dict[str, Served]
    roofline: Served
    ids: list[int]
    results: dict[str, Any] = field(default_factory=dict)


def start(options: argparse.Namespace) -> Bench:
    """Write what is missing, and start a process for each engine and one for the
    roofline.
    """
    directory = find_checkpoint(options.shape, options.layers, options.directory)
    args = load_model(directory).args
    gguf = find_gguf(directory) if LLAMA_CPP in options.engines else None
    longest = max(*options.prompts, options.steps, measures.CHUNK) + VERIFIED_STEPS
    served = {}
    for name in options.engines:
        positions = max(longest, *options.positions) + 512 if name == OURS else longest
        setup = Setup(directory, options.threads, positions, gguf)
        served[name] = serve(name, setup, options.isa)
    isa = options.isa or calls.build_info()["isa"]
    roofline = Served(Roofline, directory, options.threads, isa)
    ids = np.random.default_rng(7).integers(0, args.vocab_size, longest).tolist()
    return Bench(options, directory, args, served, roofline, ids)


def verify(bench: Bench) -> dict[str, dict[str, float]]:
    """Hold the logits of every prompt, and of steps, against the reference; stop if one
    is off.
    """
    prompts = sorted(bench.options.prompts)
    rows = [length - 1 for length in prompts] + [VERIFIED_STEPS - 1]
    reference = reference_logits(bench.directory, bench.ids[: max(rows) + 1], rows)
    cases: dict[str, Case] = {f"prompt of {n}": (bench.ids[:n], []) for n in prompts}
    cases[f"{VERIFIED_STEPS} steps"] = ([], bench.ids[:VERIFIED_STEPS])
    errors = {
        name: verified(name, served, cases, reference)
        for name, served in bench.served.items()
    }
    shown = {name: max(found.values()) for name, found in errors.items()}
    print(
        "verified against float32, greatest relative error of the logits:",
        shown,
        flush=True,
    )
    return errors


def main() -> None:
    options = read_options(
        __doc__, {"engines": ENGINES, "measures": measures.ALL}, **CHECKPOINT,
        engines=list(ENGINES), measures=list(measures.ALL), pairs=8, repeats=1, threads=2,
        prompts=[22, 128, 512], steps=12, positions=[4096, 8192], isa=str, beside=Path,
    )  # fmt: skip
    bench = start(options)
    facts = {name: served.ask("facts") for name, served in bench.served.items()}
    facts["roofline"] = bench.roofline.ask("facts")
    facts["peaks"] = bench.roofline.ask("peaks")
    for name, what in {"machine": machine(), **facts}.items():
        print(f"{name}: {what}", flush=True)
    errors = verify(bench) if bench.served else {}
    for name in options.measures:
        if OURS not in bench.served and name in measures.ONLY_OURS:
            continue
        for title, result in measures.ALL[name](bench).items():
            bench.results[title] = result
            print_rounds(title, result)
    record = {
        "machine": machine(),
        "facts": facts,
        "errors": errors,
        "options": {key: str(value) for key, value in vars(options).items()},
        "results": {title: result.record() for title, result in bench.results.items()},
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
