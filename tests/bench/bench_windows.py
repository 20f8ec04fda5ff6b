"""Times decoding behind a long context, of a model with windows in most layers.

    python -m tests.bench.bench_windows [--shape gemma-1b] [--kind Q4_K_M]
        [--positions 100 8192] [--engines llama-bolts llama.cpp] [--pairs 8] [--threads 2]

Each engine has a process of its own for each number of positions, which are filled by a
prompt. The logits after the prompts are first compared, each engine's with those of the
other. Then timings of `--steps` tokens alternate in order, A B B A, with reading the
weights of a step among them; a ratio is taken within one round. The last line is JSON.
"""

import json
from functools import partial

import numpy as np

from src.model import kv_cache_bytes, load_model
from tests.csrc import calls

from .engines import LLAMA_CPP, OURS, Setup
from .measures import ROOFLINE
from .processes import Served, asked, interleave, machine, print_rounds, serve
from .roofline import Roofline
from .shapes import (
    CHECKPOINT,
    WINDOW_SHAPES,
    find_gguf,
    find_quantized_gguf,
    find_window_checkpoint,
    read_options,
)

BFLOAT16 = "bfloat16"
# Least correlation of two engines' logits. Random weights amplify the rounding of
# activations, but the logits of another network are not correlated.
LEAST = 0.5


def main() -> None:
    options = read_options(
        __doc__,
        {"shape": WINDOW_SHAPES, "engines": [OURS, LLAMA_CPP]},
        shape="gemma-1b",
        directory=CHECKPOINT["directory"],
        kind=BFLOAT16,
        positions=[100, 8192],
        engines=[OURS, LLAMA_CPP],
        pairs=8,
        threads=2,
        steps=12,
        repeats=1,
    )
    plain = find_window_checkpoint(options.shape, options.directory)
    is_plain = options.kind == BFLOAT16
    gguf = find_gguf(plain) if is_plain else find_quantized_gguf(plain, options.kind)
    source = plain if is_plain else gguf
    args = load_model(plain).args
    longest = max(options.positions)
    ids = np.random.default_rng(7).integers(0, args.vocab_size, longest).tolist()
    served = {}
    for position in options.positions:
        logits = []
        for name in options.engines:
            setup = Setup(source, options.threads, position + 512, gguf)
            served[f"{name} at {position}"] = engine = serve(name, setup)
            logits.append(engine.ask("fill", ids[:position]))
        correlation = np.corrcoef(logits[0], logits[-1])[0, 1]
        print(f"logits at {position}: correlation {correlation:.3f}", flush=True)
        if correlation < LEAST:
            raise SystemExit(f"the logits at {position} have a correlation < {LEAST}")
    reader = Served(Roofline, source, options.threads, calls.build_info()["isa"])
    print("filled", flush=True)
    participants = asked(served, "continued_rate", ids[: options.steps])
    probe = partial(reader.ask, "pass_rate")
    participants |= {ROOFLINE: probe}
    result = interleave(participants, options.pairs, probe, options.repeats)
    print_rounds("decode", result)
    record = {
        "machine": machine(),
        "options": {key: str(value) for key, value in vars(options).items()},
        "cache_bytes": {n: kv_cache_bytes(args, n) for n in options.positions},
        "results": {"decode": result.record()},
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
