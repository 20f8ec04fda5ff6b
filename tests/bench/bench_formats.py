"""Times whole models with quantized weights: against bfloat16, and against llama.cpp's formats.

    python -m tests.bench.bench_formats --shape 1b [--layers N] [--pairs 8] [--threads 2]
        [--formats bfloat16 int8 nf4 Q8_0 Q6_K Q4_K_M Q4_0] [--theirs Q8_0 Q4_0]
        [--prompts 22 512]

Formats of GGUF files are run from the files that llama.cpp's quantizer makes, by both.
Each format has a process of its own, and the same random weights, quantized and saved once. Logits
are first verified against float32 with the dequantized weights; llama.cpp's, whose weights are
others, against float32 with the plain weights, within what four bits cost. Then timings alternate
in order, with a probe of how fast each format's own bytes can be read; a ratio is taken within one
round. The last line is JSON.
"""

import argparse
import json
from typing import Any

import numpy as np

from src.model import load_model
from tests.csrc import calls

from .engines import LLAMA_CPP, OURS, Setup
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


def parse_options() -> argparse.Namespace:
    formats = [PLAIN, *OF_THE_SAME_SIZE]
    return read_options(
        __doc__, {"formats": formats, "theirs": KINDS}, **CHECKPOINT, formats=formats[:3],
        theirs=["Q8_0", "Q4_0"], pairs=8, threads=2, prompts=[22, 512], steps=12, isa=str,
    )  # fmt: skip


class Bench:
    """What is served: a process for each format, and one for the roofline of each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.plain = find_checkpoint(options.shape, options.layers, options.directory)
        self.directories = {
            name: self.plain
            if name == PLAIN
            else (find_quantized_gguf if name in KINDS else find_quantized)(self.plain, name)
            for name in options.formats
        }
        self.longest = max([*options.prompts, options.steps])
        positions = self.longest + 16
        isa_of_roofline = options.isa or calls.build_info()["isa"]
        self.served: dict[str, Served] = {}
        self.roofline: dict[str, Served] = {}
        for name, directory in self.directories.items():
            setup = Setup(directory, options.threads, positions)
            self.served[name] = serve(OURS, setup, options.isa)
            self.roofline[name] = Served(Roofline, directory, options.threads, isa_of_roofline)
        for kind in options.theirs:
            gguf, name = find_quantized_gguf(self.plain, kind), f"{LLAMA_CPP} {kind}"
            setup = Setup(self.plain, options.threads, positions, gguf)
            self.served[name] = serve(LLAMA_CPP, setup)
        size = load_model(self.plain).args.vocab_size
        self.ids: list[int] = np.random.default_rng(7).integers(0, size, self.longest).tolist()

    def verify(self) -> dict[str, float]:
        """Hold logits of a prompt and of a step against the reference; stop if one is off."""
        length = min(22, self.longest - 1)
        errors = {}
        for name, served in self.served.items():
            bound = BOUND if name in self.directories else FOUR_BITS_BOUND
            directory = self.directories.get(name, self.plain)
            exact = reference_logits(directory, self.ids[: length + 1], [length - 1, length])
            prompt, step = self.ids[:length], self.ids[length : length + 1]
            cases: dict[str, Case] = {"prompt": (prompt, []), "step": (prompt, step)}
            errors[name] = max(verified(name, served, cases, exact, bound).values())
        return errors

    def measure(self, what: str, ids: list[int]) -> Rounds:
        """Time all formats in turn; steps beside the reading of their weights."""
        participants = asked(self.served, what, ids)
        if what == "decode_rate":
            readers = {f"{READ} {name}": one for name, one in self.roofline.items()}
            participants |= asked(readers, "pass_rate")
        return interleave(participants, self.options.pairs)


def show_ratios(title: str, rounds: Rounds) -> None:
    for name in rounds.rates:
        others = [PLAIN, f"{READ} {name}", f"{LLAMA_CPP} {OF_THE_SAME_SIZE.get(name)}"]
        for other in others:
            if name in (*OF_THE_SAME_SIZE, PLAIN) and other in rounds.rates and other != name:
                median, least, greatest = rounds.ratio(name, other)
                print(f"{title}: {name} over {other}: {median:.2f} ({least:.2f} - {greatest:.2f})")


def main() -> None:
    options = parse_options()
    bench = Bench(options)
    errors = bench.verify()
    print("machine:", machine())
    print("verified, greatest relative error of the logits:", errors, flush=True)
    found = {"decode": bench.measure("decode_rate", bench.ids[: options.steps])}
    print_rounds("decode", found["decode"])
    for length in options.prompts:
        title = f"prefill {length}"
        found[title] = bench.measure("prefill_rate", bench.ids[:length])
        print_rounds(title, found[title])
    print()
    for title, rounds in found.items():
        show_ratios(title, rounds)
    record: dict[str, Any] = {title: rounds.record() for title, rounds in found.items()}
    print(json.dumps({"machine": machine(), "errors": errors, "results": record}))


if __name__ == "__main__":
    main()
