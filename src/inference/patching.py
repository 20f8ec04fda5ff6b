"""Scans of a model by interventions: which places carry an answer, or lower a loss.

Both scans run the model once for each place, so each number is the exact effect of a
change of that place alone.

Source: Meng et al., Locating and Editing Factual Associations in GPT, 2022 (activation
patching); Michel et al., Are Sixteen Heads Really Better than One?, 2019 (ablation).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..model import InferenceContext, Intervention, Model, intervene
from ..model.places import feed_forward_address, head_address, residual_address
from .errors import PromptError
from .perplexity import score_chunks

Array: TypeAlias = np.ndarray[Any, Any]
# A function that is called with the number of finished runs and the number of all runs.
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True)
class PatchScan:
    """The effects of patching places of a run with tensors of another run.

    The measure of a run is the difference of two logits at its last position: of the
    token that this run predicts, and of the token that the other run predicts. An effect
    is the share of the way to the other run's measure: 0 means that a place has no
    effect, and 1 that it alone makes the run predict as the other one.

    Attributes:
        answer: The token that the run predicts.
        other_answer: The token that the other run predicts.
        measure: The measure of the run, answer - other_answer.
        other_measure: The measure of the other run.
        residual: The effect of the residual stream after each layer at each position,
            float64 [L, T].
        heads: The effect of each head at all positions, float64 [L, H].
        feed_forward: The effect of each feed-forward at all positions, float64 [L].
    """

    answer: int
    other_answer: int
    measure: float
    other_measure: float
    residual: Array
    heads: Array
    feed_forward: Array


@dataclass(frozen=True)
class AblationScan:
    """The loss of a text without each head and each feed-forward.

    Attributes:
        loss: The mean loss per token of the model as it is, -log p.
        heads: The loss with each head set to 0, float64 [L, H].
        feed_forward: The loss with each feed-forward set to 0, float64 [L].
        tokens: The number of scored tokens.
    """

    loss: float
    heads: Array
    feed_forward: Array
    tokens: int


def scan_patches(
    model: Model,
    ids: Sequence[int],
    other_ids: Sequence[int],
    progress: Progress | None = None,
) -> PatchScan:
    """Patch each place of a run with its tensor in another run, one place at a time.

    Args:
        model: The model.
        ids: The token ids of the run, of which positions correspond to `other_ids`.
        other_ids: The token ids of the other run, as many as `ids`.
        progress: Called after each run of the model.

    Raises:
        PromptError: If the numbers of tokens differ, or if both runs predict the same
            token.
    """
    if len(ids) != len(other_ids):
        rule = "both prompts must have the same number of tokens"
        raise PromptError(f"[patch] {rule}: {len(ids)} != {len(other_ids)}")
    L = model.args.n_layers
    H = model.args.n_heads
    T = len(ids)
    of_layers = [residual_address(layer) for layer in range(L)]
    of_heads = [f"layers.{layer}.attention.heads" for layer in range(L)]
    of_feed_forward = [feed_forward_address(layer) for layer in range(L)]
    paths = [*of_layers, *of_heads, *of_feed_forward]
    records = {path: Intervention.record(model, path) for path in paths}
    run = _Prompt(model, ids)
    other_logits = _Prompt(model, other_ids).logits(*records.values())
    logits = run.logits()
    answer = int(logits.argmax())
    other_answer = int(other_logits.argmax())
    if answer == other_answer:
        rule = "the prompts must predict different tokens"
        raise PromptError(f"[patch] {rule}: both predict token {answer}")

    def measure(row: Array) -> float:
        return float(row[answer]) - float(row[other_answer])

    start = measure(logits)
    way = measure(other_logits) - start
    values = {path: record.recorded for path, record in records.items()}
    total = L * (T + H + 1)
    done = 0

    def effect(address: str, value: Array) -> float:
        nonlocal done
        patched = run.logits(Intervention.replace(model, address, value))
        done += 1
        if progress is not None:
            progress(done, total)
        return (measure(patched) - start) / way

    residual = np.empty((L, T))
    heads = np.empty((L, H))
    feed_forward = np.empty(L)
    for layer in range(L):
        stream = values[of_layers[layer]]
        for position in range(T):
            address = f"{of_layers[layer]}@{position}"
            residual[layer, position] = effect(address, stream[position])
        output = values[of_heads[layer]]
        for head in range(H):
            heads[layer, head] = effect(head_address(layer, head), output[:, head])
        path = of_feed_forward[layer]
        feed_forward[layer] = effect(path, values[path])
    return PatchScan(
        answer=answer,
        other_answer=other_answer,
        measure=start,
        other_measure=start + way,
        residual=residual,
        heads=heads,
        feed_forward=feed_forward,
    )


class _Prompt:
    """A prompt that runs many times in one context."""

    def __init__(self, model: Model, ids: Sequence[int]) -> None:
        self._model = model
        self._ids = ids
        self._context = InferenceContext(model.args, len(ids))

    def logits(self, *interventions: Intervention) -> Array:
        """Run the prompt, and return the logits after its last token, float32 [V]."""
        self._context.clear()
        with intervene(self._model, *interventions):
            rows = self._model.transformer.forward(self._context, self._ids)
        logits: Array = rows.numpy()[0].copy()
        return logits


def scan_ablations(
    model: Model,
    chunks: Sequence[Sequence[int]],
    progress: Progress | None = None,
) -> AblationScan:
    """Measure the loss of a text with each head and each feed-forward set to 0.

    The tokens are scored as `score_chunks` does.

    Args:
        model: The model.
        chunks: The token ids of each chunk, as returned by `text_chunks`.
        progress: Called after each run over all chunks.

    Raises:
        NumericError: If a logit is not finite.
        ModelError: If the chunks are longer than the model's context.
    """
    L = model.args.n_layers
    H = model.args.n_heads
    total = 1 + L * (H + 1)
    losses: list[float] = []
    tokens = 0
    for address in _ablated_addresses(L, H):
        changes = [] if address is None else [Intervention.zero(model, address)]
        with intervene(model, *changes):
            scores = [score.losses for score in score_chunks(model.transformer, chunks)]
        values = np.concatenate(scores)
        tokens = values.size
        losses.append(float(values.mean()))
        if progress is not None:
            progress(len(losses), total)
    table = np.array(losses[1:]).reshape(L, H + 1)
    return AblationScan(losses[0], table[:, :H], table[:, H], tokens)


def _ablated_addresses(layers: int, heads: int) -> Iterator[str | None]:
    """Yield None for the model as it is, and the addresses of all parts of each layer."""
    yield None
    for layer in range(layers):
        for head in range(heads):
            yield head_address(layer, head)
        yield feed_forward_address(layer)
