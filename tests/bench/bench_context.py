"""Times decoding and prompts behind a long context.

    python -m tests.bench.bench_context [--shape 1b] [--layers 4] [--kind Q4_K_M]
        [--positions 8192 16384] [--measures decode prompt] [--pairs 8] [--threads 2]
        [--engines llama-bolts llama.cpp] [--ik DIRECTORY]

A shape is one of Llama's (1b, 8b), one with windows in most layers (gemma-1b), a model
directory or a GGUF file. With --ik, ik_llama.cpp is built in that directory of its
sources and takes part. Each engine has a process of its own for each number of positions,
which are filled by a prompt. The logits after the prompts are first compared, each
engine's with those of the first. Then timings alternate in order, A B B A, with reading
the weights of a step among them: `--steps` tokens after the prompt, or the last 512
tokens of the prompt once more. A ratio is taken within one round. The last line is JSON.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from src.model import kv_cache_bytes, load_model
from tests.csrc import calls

from . import ik_llama_cpp
from .engines import IK_LLAMA_CPP, LLAMA_CPP, OURS, Setup
from .measures import CHUNK, ROOFLINE
from .processes import Served, asked, interleave, machine, print_rounds, serve
from .roofline import Roofline
from .shapes import (
    CHECKPOINT,
    WINDOW_SHAPES,
    find_checkpoint,
    find_gguf,
    find_quantized_gguf,
    find_window_checkpoint,
    read_options,
)

BFLOAT16 = "bfloat16"
DECODE = "decode"
PROMPT = "prompt"
# Least correlation of two engines' logits. Random weights amplify the rounding of
# activations, but the logits of another network are not correlated.
LEAST = 0.5


def main() -> None:
    options = read_options(
        __doc__,
        {"engines": [OURS, LLAMA_CPP], "measures": [DECODE, PROMPT]},
        **CHECKPOINT,
        kind=BFLOAT16,
        positions=[100, 8192],
        measures=[DECODE],
        engines=[OURS, LLAMA_CPP],
        ik=Path,
        pairs=8,
        threads=2,
        steps=12,
        repeats=1,
    )
    source, gguf = find_model(options)
    built = ik_llama_cpp.build(options.ik) if options.ik else None
    engines = [*options.engines, *([IK_LLAMA_CPP] if built else [])]
    args = load_model(source).args
    longest = max(options.positions)
    ids = np.random.default_rng(7).integers(0, args.vocab_size, longest).tolist()
    served = {}
    for position in options.positions:
        logits = []
        for name in engines:
            setup = Setup(source, options.threads, position + 512, gguf, calls=built)
            served[f"{name} at {position}"] = engine = serve(name, setup)
            logits.append(engine.ask("fill", ids[:position]))
            correlation = np.corrcoef(logits[0], logits[-1])[0, 1]
            print(f"{name} at {position}: correlation {correlation:.3f}", flush=True)
            if correlation < LEAST:
                raise SystemExit(f"the logits of {name} have a correlation < {LEAST}")
    reader = Served(Roofline, source, options.threads, calls.build_info()["isa"])
    print("filled", flush=True)
    probe = partial(reader.ask, "pass_rate")
    results = {}
    for measure in options.measures:
        if measure == DECODE:
            participants = asked(served, "continued_rate", ids[: options.steps])
        else:
            participants = {
                f"{name} at {position}": partial(
                    served[f"{name} at {position}"].ask,
                    "repeated_rate",
                    ids[position - CHUNK : position],
                )
                for position in options.positions
                for name in engines
            }
        participants |= {ROOFLINE: probe}
        result = interleave(participants, options.pairs, probe, options.repeats)
        print_rounds(measure, result)
        results[measure] = result.record()
    record = {
        "machine": machine(),
        "options": {key: str(value) for key, value in vars(options).items()},
        "cache_bytes": {n: kv_cache_bytes(args, n) for n in options.positions},
        "results": results,
    }
    print(json.dumps(record))


def find_model(options: Any) -> tuple[Path, Path]:
    """Return the model that llama-bolts runs, and the GGUF file for the other engines."""
    if options.shape.endswith(".gguf"):
        return Path(options.shape), Path(options.shape)
    if options.shape in WINDOW_SHAPES:
        plain = find_window_checkpoint(options.shape, options.directory)
    else:
        plain = find_checkpoint(options.shape, options.layers, options.directory)
    if options.kind == BFLOAT16:
        return plain, find_gguf(plain)
    gguf = find_quantized_gguf(plain, options.kind)
    return gguf, gguf


if __name__ == "__main__":
    main()
