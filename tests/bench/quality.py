"""Measures what quantization costs: perplexity, right answers, and the error of logits.

    python -m tests.bench.quality [--layers 2] [--directory DIR]

The perplexity is that of the bundled model over the answers of all held-out pairs; an
answer is right when it is the expected one to the letter. The error of logits is that of
random weights of the 1B shape with few layers, against the same weights multiplied in
float32, as a share of the logits' deviation. Prints the table that the documentation
shows; the last line is JSON.
"""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from src.inference import encode_chat
from src.model import InferenceContext, Model, load_model
from tools.nano.corpus import load_split
from tools.nano.evaluate import Examiner, pair_messages, score, total
from tools.nano.pairs import Pair

from .reference import reference_logits
from .shapes import CHECKPOINT, find_checkpoint, read_options

FORMATS: tuple[str | None, ...] = (None, "int8", "nf4")
TOKENS = 32
CONTEXT = 1024


def log_probabilities(logits: npt.NDArray[np.float32], ids: Sequence[int]) -> list[float]:
    """Return the natural logarithm of the probability of each id by its row of logits."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    rows = np.arange(len(ids))
    result: list[float] = (
        wide[rows, list(ids)] - np.log(np.exp(wide).sum(axis=1))
    ).tolist()
    return result


def perplexity(model: Model, pairs: Sequence[Pair]) -> float:
    """Return exp(-mean log p) over the tokens of all answers."""
    tokenizer = model.tokenizer
    context = InferenceContext(model.args, CONTEXT)
    assert tokenizer is not None
    found: list[float] = []
    for pair in pairs:
        if pair.raw:
            prompt = tokenizer.encode(pair.question, bos=True, eos=False)
        else:
            prompt = encode_chat(tokenizer, pair_messages(pair))
        answer = tokenizer.encode(pair.answer, bos=False, eos=False)
        context.clear()
        logits = model.transformer.forward(
            context, prompt + answer, all_positions=True
        ).numpy()
        found += log_probabilities(logits[len(prompt) - 1 : -1], answer)
    return float(np.exp(-np.mean(found)))


def main() -> None:
    options = read_options(__doc__, layers=2, directory=CHECKPOINT["directory"])
    directory = find_checkpoint("1b", options.layers, options.directory)
    size = load_model(directory).args.vocab_size
    held_out = load_split().held_out
    ids = np.random.default_rng(5).integers(0, size, TOKENS).tolist()
    exact = reference_logits(directory, ids, list(range(TOKENS)))
    pairs = [pair for family in held_out.values() for pair in family]
    print("| weights | perplexity | answers right | error of logits |\n|---|---|---|---|")
    record = {}
    for quantize in FORMATS:
        name = quantize or "bfloat16"
        model = load_model(directory, quantize=quantize)
        context = InferenceContext(model.args, TOKENS)
        logits = model.transformer.forward(context, ids, all_positions=True).numpy()
        error = logits.astype(np.float64) - exact
        scores = score(Examiner(quantize=quantize), held_out, lambda pair, answer: None)
        record[name] = {
            "perplexity": perplexity(load_model(quantize=quantize), pairs),
            "right": total(scores.values()).part,
            "error": float(np.sqrt(np.mean(error**2)) / exact.std()),
        }
        row = "| {} | {perplexity:.4f} | {right:.1%} | {error:.2%} |"
        print(row.format(name, **record[name]), flush=True)
    print(json.dumps({"pairs": len(pairs), "layers": options.layers, "formats": record}))


if __name__ == "__main__":
    main()
