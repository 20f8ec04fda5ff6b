"""Measures what quantization costs: perplexity, right answers, and the error of logits.

    python -m tests.bench.quality [--layers 2] [--directory DIR]

The perplexity is that of the bundled model over the answers of all held-out pairs; an answer is
right when it is the expected one to the letter. The error of logits is that of random weights of
the 1B shape with few layers, against the same weights multiplied in float32, as a share of the
logits' deviation. Prints the table that the documentation shows; the last line is JSON.
"""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from src.inference import encode_chat
from src.model import InferenceContext, LlamaTransformer, Model, ModelArgs, load_model
from src.nano.corpus import load_split
from src.nano.evaluate import Examiner, pair_messages, score, total
from src.nano.pairs import Pair

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


def text_of(args: ModelArgs) -> list[int]:
    ids: list[int] = np.random.default_rng(5).integers(0, args.vocab_size, TOKENS).tolist()
    return ids


def logits_of(transformer: LlamaTransformer) -> npt.NDArray[np.float64]:
    context = InferenceContext(transformer.args, TOKENS)
    ids = text_of(transformer.args)
    return transformer.forward(context, ids, all_positions=True).numpy().astype(np.float64)


def main() -> None:
    options = read_options(__doc__, layers=2, directory=CHECKPOINT["directory"])
    directory = find_checkpoint("1b", options.layers, options.directory)
    exact = reference_logits(directory, text_of(load_model(directory).args), list(range(TOKENS)))
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
