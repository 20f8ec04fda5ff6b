"""Measures what quantization costs: perplexity, right answers, and the error of logits.

    python -m tests.bench.quality [--layers 2] [--directory DIR]

The perplexity is that of the bundled model over the answers of all held-out pairs; an answer is
right when it is the expected one to the letter. The error of logits is that of random weights of
the 1B shape with few layers, against the same weights multiplied in float32, as a share of the
logits' deviation. Prints the table that the documentation shows; the last line is JSON.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from src import ml
from src.inference import encode_chat
from src.model import InferenceContext, LlamaTransformer, Model, load_model
from src.nano.corpus import load_split
from src.nano.evaluate import Examiner, pair_messages, score, total
from src.nano.pairs import Pair

from .shapes import add_directory_option, find_checkpoint

FORMATS: tuple[str | None, ...] = (None, "int8", "nf4")
TOKENS = 32
CONTEXT = 1024


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--layers", type=int, default=2, help="of the 1B shape")
    add_directory_option(parser)
    return parser.parse_args()


def log_probabilities(logits: npt.NDArray[np.float32], ids: Sequence[int]) -> list[float]:
    """Return the natural logarithm of the probability of each id by its row of logits."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    rows = np.arange(len(ids))
    result: list[float] = (wide[rows, list(ids)] - np.log(np.exp(wide).sum(axis=1))).tolist()
    return result


def prompt_ids(model: Model, pair: Pair) -> list[int]:
    """Return what the model reads before the answer of a pair."""
    assert model.tokenizer is not None
    if pair.raw:
        return model.tokenizer.encode(pair.question, bos=True, eos=False)
    return encode_chat(model.tokenizer, pair_messages(pair))


def perplexity(model: Model, pairs: Sequence[Pair]) -> float:
    """Return exp(-mean log p) over the tokens of all answers."""
    assert model.tokenizer is not None
    context = InferenceContext(model.args, CONTEXT)
    found: list[float] = []
    for pair in pairs:
        prompt = prompt_ids(model, pair)
        answer = model.tokenizer.encode(pair.answer, bos=False, eos=False)
        ids = prompt + answer
        context.clear()
        logits = model.transformer.forward(context, ids, all_positions=True).numpy()
        found += log_probabilities(logits[len(prompt) - 1 : -1], answer)
    return float(np.exp(-np.mean(found)))


def right_answers(quantize: str | None) -> float:
    """Return the share of held-out pairs that are answered to the letter."""
    examiner = Examiner(quantize=quantize)
    return total(score(examiner, load_split().held_out, lambda pair, answer: None).values()).part


def logits_of(transformer: LlamaTransformer) -> npt.NDArray[np.float64]:
    """Return the logits of a text that is the same each time, [T, V]."""
    ids = np.random.default_rng(5).integers(0, transformer.args.vocab_size, TOKENS)
    context = InferenceContext(transformer.args, TOKENS)
    return transformer.forward(context, ids, all_positions=True).numpy().astype(np.float64)


def exact_logits(directory: Path) -> npt.NDArray[np.float64]:
    """Return the logits of the plain weights, multiplied in float32."""
    model = load_model(directory)
    tensors = {
        name: weight.to(ml.float32)
        for name, weight in model.tensors.items()
        if isinstance(weight, ml.Tensor)
    }
    args = dataclasses.replace(model.args, dtype=ml.float32)
    return logits_of(LlamaTransformer(args, tensors))


def main() -> None:
    """Measure all formats and print them as a table."""
    options = parse_options()
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = find_checkpoint("1b", options.layers, options.directory)
    exact = exact_logits(directory)
    pairs = [pair for family in load_split().held_out.values() for pair in family]
    print("| weights | perplexity | answers right | error of logits |\n|---|---|---|---|")
    record = {}
    for quantize in FORMATS:
        name = quantize or "bfloat16"
        error = logits_of(load_model(directory, quantize=quantize).transformer) - exact
        measured = {
            "perplexity": perplexity(load_model(quantize=quantize), pairs),
            "right": right_answers(quantize),
            "error": float(np.sqrt(np.mean(error**2)) / exact.std()),
        }
        record[name] = measured
        print(
            f"| {name} | {measured['perplexity']:.4f} | {measured['right']:.1%} "
            f"| {measured['error']:.2%} |",
            flush=True,
        )
    print(json.dumps({"pairs": len(pairs), "layers": options.layers, "formats": record}))


if __name__ == "__main__":
    main()
