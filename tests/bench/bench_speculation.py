"""Answers with drafts over the same without: `python -m tests.bench.bench_speculation`.

Each pair runs the same prompt with the same seed in two new engines over one model, in
turned order every other pair, and first compares the answers. The last line is JSON.
"""

import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from src import ml
from src.inference import InferenceEngine, SamplingArgs
from src.model import Model, load_model
from tests.model.tiny import Tiny, token_ids, write_meta_directory

from .shapes import CHECKPOINT, find_checkpoint, read_options

# By name: random models of 0.26, 5.4 and 33 million parameters; None is the bundled one.
MODELS: dict[str, Tiny | None] = {
    "bundled": None,
    "260K": Tiny("260K", 64, 5, 8, 4, 172, 512),
    "5M": Tiny("5M", 256, 6, 8, 4, 688, 1024),
    "33M": Tiny("33M", 512, 8, 8, 4, 1376, 8192),
}
GREEDY = SamplingArgs(temperature=0.0)
SAMPLED = SamplingArgs(temperature=1.0, top_k=0, top_p=1.0)


def main() -> None:
    place = CHECKPOINT["directory"]
    options = read_options(
        __doc__, models=list(MODELS), pairs=16, tokens=300, directory=place
    )
    results: dict[str, Any] = {}
    for name in options.models:
        model = open_model(name, options.directory)
        for text, (prompt, sampling) in texts_of(model).items():
            found = measure(model, prompt, sampling, options.pairs, options.tokens)
            results[f"{name}, {text}"] = found
            print(
                f"{name:8} {text:15} off/on {found['ratio']:.3f} ({found['least']:.3f} - "
                f"{found['greatest']:.3f}), {found['drafted']} drafted, "
                f"{found['accepted']} right, {found['tokens_per_second']:.0f} tokens/s "
                "without",
                flush=True,
            )
    print(json.dumps(results))


def open_model(name: str, directory: Path) -> Model:
    """Load a model of `MODELS`, or one of `SHAPES`, without a tokenizer: no token ends an
    answer.

    The layers of a random model of `MODELS` add zeros, so that a token depends on the one
    before it alone: where the largest logit is taken, the answer soon repeats itself.
    """
    config = MODELS.get(name)
    if config is not None:
        with tempfile.TemporaryDirectory() as place:
            model = load_model(write_meta_directory(Path(place), config, ml.bfloat16))
        for layer in model.transformer.layers:
            for part, name in ((layer.attention, "wo"), (layer.feed_forward, "w2")):
                weight = getattr(part, name)
                setattr(part, name, ml.zeros(weight.shape, dtype=weight.dtype))
        return model
    model = load_model(None if name in MODELS else find_checkpoint(name, None, directory))
    return replace(model, tokenizer=None)


def texts_of(model: Model) -> dict[str, tuple[list[int], SamplingArgs]]:
    """Return prompts, and how to go on from them."""
    vocabulary = Tiny("", 0, 0, 0, 0, 0, model.args.vocab_size)
    phrase = token_ids(vocabulary, 12, seed=5)
    return {
        "repetitive": (phrase * 6, GREEDY),
        "prompt repeats": (phrase * 6, SAMPLED),
        "not repetitive": (token_ids(vocabulary, 72, seed=6), SAMPLED),
        "short prompt": (phrase[:4], SAMPLED),
    }


def measure(
    model: Model, prompt: list[int], sampling: SamplingArgs, pairs: int, tokens: int
) -> dict[str, float]:
    """Time pairs of answers; the ratios are those of the seconds without drafts over
    with.
    """
    ratios = []
    plain = []
    drafted = accepted = 0
    for number in range(-1, pairs):  # the first one warms up
        seeded = replace(sampling, seed=max(number, 0))
        seconds = {}
        answers = {}
        for speculation in (False, True) if number % 2 else (True, False):
            engine = InferenceEngine(model, len(prompt) + tokens, speculation=speculation)
            start = time.perf_counter()
            answers[speculation] = [
                step.token_id for step in engine.generate(prompt, tokens, seeded)
            ]
            seconds[speculation] = time.perf_counter() - start
            assert engine.last_stats is not None
            drafted += engine.last_stats.drafted_tokens * (number >= 0)
            accepted += engine.last_stats.accepted_tokens * (number >= 0)
        assert answers[False] == answers[True]
        if number >= 0:
            ratios.append(seconds[False] / seconds[True])
            plain.append(seconds[False] / tokens)
    return {
        "ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios),
        "drafted": drafted / pairs, "accepted": accepted / pairs,
        "tokens_per_second": 1 / statistics.median(plain),
    }  # fmt: skip


if __name__ == "__main__":
    main()
