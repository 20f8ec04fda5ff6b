"""Times a model with experts beside llama.cpp: `python -m tests.bench.bench_experts`.

The weights are random and quantized by llama.cpp. All layers have the same ones, so the
file is written fast; the router chooses other experts for other tokens. The logits after
a prompt are first compared. Then timings alternate in order, A B B A: steps of one token,
prompts, and a step of eight tokens with the logits of each. Steps stand next to reading
the weights of a step, with as many experts as a token uses. The ratio of the bytes of
eight tokens and of one counts the experts that these tokens chose. A ratio is taken
within one round. The last line is JSON.
"""

import json
from functools import partial
from typing import Any

import numpy as np

from src.ml.op import OpCall, subscribe, unsubscribe
from tests.csrc import calls

from .engines import LLAMA_CPP, OURS, Ours, Setup, seconds_of_each
from .measures import ROOFLINE
from .processes import Rounds, Served, asked, interleave, machine, print_rounds, serve
from .roofline import Roofline
from .shapes import CHECKPOINT, EXPERT_SHAPES, find_experts_gguf, read_options

INT8 = "llama-bolts, activations of 8 bits"
SEVERAL = 8
# Least correlation of two engines' logits: a rounding that flips the choice of an expert
# changes much, but the logits of another network are not correlated.
LEAST = 0.5


class OursWithExperts(Ours):
    """llama-bolts, of which the bytes of the chosen experts are asked too."""

    def several_rate(self, ids: list[int], count: int) -> float:
        """Return steps per second of several tokens after a prompt."""
        times = []
        for _ in range(count):
            self.context.length = self.filled
            times += seconds_of_each(self._step, [ids])
        return 1 / sorted(times)[count // 2]

    def bytes_read(self, ids: list[int]) -> int:
        """Return the bytes that a step of tokens after the filled prompt reads."""
        chosen = []

        def observe(call: OpCall) -> None:
            if call.op == "choose_experts":
                chosen.append(len(np.unique(call.results[0].numpy())))

        self.context.length = self.filled
        subscribe(observe)
        try:
            self._step(ids)
        finally:
            unsubscribe(observe)
        tensors = self.model.tensors
        rows = {row.name: row for row in self.model.args.tensor_rows}
        total = 0
        for name, weight in tensors.items():
            if name == "tok_embeddings.weight" and "output.weight" in tensors:
                continue
            row = rows[name]
            if row.expert is None:
                total += weight.nbytes
            elif row.expert == 0:  # all experts of a layer have the same size
                total += weight.nbytes * chosen[int(name.split(".")[1])]
        return total

    def _step(self, ids: list[int]) -> None:
        forward = self.model.transformer.forward
        forward(self.context, ids, self.context.length, all_positions=True).numpy()


def main() -> None:
    options = read_options(
        __doc__,
        {"shape": EXPERT_SHAPES, "engines": [OURS, LLAMA_CPP]},
        shape="qwen3-30b",
        directory=CHECKPOINT["directory"],
        kind="Q4_K_M",
        engines=[OURS, LLAMA_CPP],
        prompts=[22, 128, 512],
        pairs=8,
        threads=2,
        steps=24,
        repeats=1,
    )
    gguf = find_experts_gguf(options.shape, options.directory, options.kind)
    size = EXPERT_SHAPES[options.shape]["vocab_size"]
    longest = max([*options.prompts, options.steps])
    ids = np.random.default_rng(7).integers(0, size, longest).tolist()
    setup = Setup(gguf, options.threads, longest + 512, gguf)
    short = Setup(gguf, options.threads, longest + 512, gguf, activations="int8")
    served = {
        OURS: Served(OursWithExperts, setup),
        INT8: Served(OursWithExperts, short),
    }
    if LLAMA_CPP in options.engines:
        served[LLAMA_CPP] = serve(LLAMA_CPP, setup)
    verify(served, ids[: min(options.prompts)])
    reader = Served(Roofline, gguf, options.threads, calls.build_info()["isa"])
    probe = partial(reader.ask, "pass_rate")
    results: dict[str, Rounds] = {}
    measure = partial(
        interleave, pairs=options.pairs, probe=probe, repeats=options.repeats
    )
    steps = asked(served, "decode_rate", ids[: options.steps])
    results["decode"] = measure(steps | {ROOFLINE: probe})
    for length in options.prompts:
        prompts = asked(served, "prefill_rate", ids[:length])
        results[f"prefill {length}"] = measure(prompts)
    ours = served[OURS]
    ours.ask("fill", ids[: min(options.prompts)])
    several = {
        f"{count} tokens": partial(ours.ask, "several_rate", ids[:count], options.steps)
        for count in (1, SEVERAL)
    }
    results["step"] = measure(several)
    read = [ours.ask("bytes_read", ids[:count]) for count in (1, SEVERAL)]
    for title, rounds in results.items():
        print_rounds(title, rounds)
    print(f"\na step of {SEVERAL} tokens reads {read[1] / read[0]:.2f} times the bytes")
    record: dict[str, Any] = {
        "machine": machine(),
        "model": str(gguf),
        "bytes": read,
        "results": {title: rounds.record() for title, rounds in results.items()},
    }
    print(json.dumps(record))


def verify(served: dict[str, Served], ids: list[int]) -> None:
    """Compare the logits of all engines after a prompt; stop if one is off."""
    logits = {name: engine.ask("logits", ids, []) for name, engine in served.items()}
    for name, values in logits.items():
        correlation = np.corrcoef(logits[OURS], values)[0, 1]
        print(f"{name}: correlation of the logits {correlation:.3f}", flush=True)
        if not correlation >= LEAST:
            raise SystemExit(f"the logits of {name} have a correlation < {LEAST}")


if __name__ == "__main__":
    main()
