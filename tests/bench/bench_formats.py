"""Times whole models with quantized weights: against bfloat16, and against llama.cpp's
formats.

    python -m tests.bench.bench_formats --shape 1b [--layers N] [--pairs 8] [--threads 2]
        [--formats bfloat16 int8 nf4 Q8_0 Q6_K Q4_K_M Q4_0] [--theirs Q8_0 Q4_0]
        [--prompts 22 512] [--activations int16 int8] [--ik DIRECTORY]

Formats of GGUF files are run from the files that llama.cpp's quantizer makes, by both.
With --ik, ik_llama.cpp is built in that directory of its sources, and runs the same files
with and without -rtr 1. With --activations int8, activations of our products are rounded
to 8 bits, as the others' are.
Each format has a process of its own, and the same random weights, quantized and saved
once. Logits are first verified against float32 with the dequantized weights; llama.cpp's,
whose weights are others, against float32 with the plain weights, within what four bits
cost. Then timings alternate in order, with a probe of how fast each format's own bytes
can be read, which is taken before and after each measure too; a ratio is taken within one
round. The last line is JSON.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from src.model import load_model
from tests.csrc import calls

from . import ik_llama_cpp
from .engines import IK_LLAMA_CPP, IK_REPACKED, LLAMA_CPP, OURS, Setup
from .processes import Rounds, Served, asked, interleave, machine, print_rounds, serve
from .reference import BOUND, Case, reference_logits, verified
from .roofline import Roofline
from .shapes import (
    CHECKPOINT,
    find_checkpoint,
    find_quantized,
    find_quantized_gguf,
    read_options,
)

PLAIN = "bfloat16"
KINDS = ("Q8_0", "Q6_K", "Q4_K_M", "Q4_0")
OF_THE_SAME_SIZE = {"int8": "Q8_0", "nf4": "Q4_0", **dict(zip(KINDS, KINDS, strict=True))}
# Of logits with weights of four bits, as a share of those with the plain ones.
FOUR_BITS_BOUND = 1.0
READ = "read roofline of"
RIVALS = (LLAMA_CPP, IK_LLAMA_CPP, IK_REPACKED)


class Named(NamedTuple):
    """A format of ours, and the activations that its products take."""

    kind: str
    activations: str = "int16"

    def __str__(self) -> str:
        of_8_bits = self.activations == "int8"
        return f"{self.kind}, activations of 8 bits" if of_8_bits else self.kind


def start(
    options: argparse.Namespace, directories: dict[str, Path], plain: Path, positions: int
) -> tuple[dict[str, Served], dict[str, Served]]:
    """Start a process for each format and engine, and one for the roofline of each of our
    formats.
    """
    isa = options.isa or calls.build_info()["isa"]
    served = {}
    readers = {}
    for name, directory in directories.items():
        for activations in options.activations if name != PLAIN else ["int16"]:
            setup = Setup(directory, options.threads, positions, activations=activations)
            served[str(Named(name, activations))] = serve(OURS, setup, options.isa)
        readers[f"{READ} {name}"] = Served(Roofline, directory, options.threads, isa)
    ik_calls = ik_llama_cpp.build(options.ik) if options.ik else None
    rivals = [LLAMA_CPP] if ik_calls is None else RIVALS
    for kind in options.theirs:
        gguf = find_quantized_gguf(plain, kind)
        setup = Setup(plain, options.threads, positions, gguf, calls=ik_calls)
        served |= {f"{rival} {kind}": serve(rival, setup) for rival in rivals}
    return served, readers


def verify(
    served: dict[str, Served], directories: dict[str, Path], plain: Path, ids: list[int]
) -> dict[str, float]:
    """Hold logits of a prompt and of a step against the reference; stop if one is off."""
    length = min(22, len(ids) - 1)
    errors = {}
    prompt = ids[:length]
    step = ids[length : length + 1]
    cases: dict[str, Case] = {"prompt": (prompt, []), "step": (prompt, step)}
    rows = [length - 1, length]
    references = {
        directory: reference_logits(directory, prompt + step, rows)
        for directory in {plain, *directories.values()}
    }
    for name, one in served.items():
        ours = directories.get(name.partition(",")[0])
        bound = FOUR_BITS_BOUND if ours is None else BOUND
        exact = references[ours or plain]
        errors[name] = max(verified(name, one, cases, exact, bound).values())
    return errors


def show_ratios(title: str, rounds: Rounds) -> None:
    """Print how many times as fast each of our formats is as what it is compared with."""
    for name in rounds.rates:
        kind = name.partition(",")[0]
        same_size = OF_THE_SAME_SIZE.get(kind)
        rivals = [f"{rival} {same_size}" for rival in RIVALS]
        for other in [PLAIN, kind, f"{READ} {kind}", *rivals]:
            is_ours = kind in (*OF_THE_SAME_SIZE, PLAIN)
            if is_ours and other in rounds.rates and other != name:
                median, least, greatest = rounds.ratio(name, other)
                print(
                    f"{title}: {name} over {other}: {median:.2f} ({least:.2f} - "
                    f"{greatest:.2f})"
                )


def main() -> None:
    formats = [PLAIN, *OF_THE_SAME_SIZE]
    options = read_options(
        __doc__,
        {"formats": formats, "theirs": KINDS, "activations": ("int16", "int8")},
        **CHECKPOINT,
        formats=formats[:3],
        theirs=["Q8_0", "Q4_0"],
        activations=["int16"],
        ik=Path,
        pairs=8,
        repeats=1,
        threads=2,
        prompts=[22, 512],
        steps=12,
        isa=str,
    )
    plain = find_checkpoint(options.shape, options.layers, options.directory)
    find = dict.fromkeys(KINDS, find_quantized_gguf) | {PLAIN: lambda plain, _: plain}
    directories = {
        name: find.get(name, find_quantized)(plain, name) for name in options.formats
    }
    longest = max([*options.prompts, options.steps])
    served, readers = start(options, directories, plain, longest + 16)
    size = load_model(plain).args.vocab_size
    ids = np.random.default_rng(7).integers(0, size, longest).tolist()
    errors = verify(served, directories, plain, ids)
    print("machine:", machine())
    print("verified, greatest relative error of the logits:", errors, flush=True)
    steps = asked(served, "decode_rate", ids[: options.steps]) | asked(
        readers, "pass_rate"
    )
    prompts = {n: asked(served, "prefill_rate", ids[:n]) for n in options.prompts}
    measures = {"decode": steps} | {f"prefill {n}": one for n, one in prompts.items()}
    probe = partial(next(iter(readers.values())).ask, "pass_rate")
    found: dict[str, Rounds] = {}
    for title, participants in measures.items():
        found[title] = interleave(participants, options.pairs, probe, options.repeats)
        print_rounds(title, found[title])
    print()
    for title, rounds in found.items():
        show_ratios(title, rounds)
    record = {title: rounds.record() for title, rounds in found.items()}
    print(json.dumps({"machine": machine(), "errors": errors, "results": record}))


if __name__ == "__main__":
    main()
