"""Measure a model's perplexity on a text, and its divergence from another model.

The results are comparable with those of llama-perplexity, because the conventions are the
same. The text is split into chunks of `length` tokens, and each chunk is run with an
empty cache. If the tokenizer adds a beginning-of-text token, this token replaces the
first token of each chunk. Only tokens in the second half of a chunk are scored, because
the first tokens have too little context.

Source: llama.cpp, `tools/perplexity/perplexity.cpp`.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..ml import ScaledAdapters, adapted_rows
from ..model import InferenceContext, LlamaTransformer
from ..tokenizer import Tokenizer
from .errors import NumericError, PromptError
from .sampling import Floats, Ids, Logits

DEFAULT_CHUNK = 512
SMALLEST_CHUNK = 3  # the smallest chunk with a token to score in its second half
_ROWS = 64  # rows of logits that are computed at a time, to limit memory


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens, or a value derived from it, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Divergence:
    """A comparison of a model with a reference model, for the scored tokens of a chunk.

    Attributes:
        losses: The reference's loss for each token, -log p, float64 [n].
        divergences: KL(reference || model) for each token, in nats, float64 [n].
        same_top: Whether both models assign the highest probability to the same token,
            bool [n].
    """

    losses: Floats
    divergences: Floats
    same_top: np.typing.NDArray[np.bool_]


@dataclass(frozen=True)
class ChunkScore:
    """A model's score for one chunk.

    Attributes:
        losses: The loss for each scored token, -log p, float64 [n].
        seconds: How long the model took to run the chunk.
        against: The comparison with a reference model, or None.
    """

    losses: Floats
    seconds: float
    against: Divergence | None = None


def text_chunks(tokenizer: Tokenizer, text: str, length: int) -> list[list[int]]:
    """Tokenize a text, and split it into chunks of equal length.

    Args:
        tokenizer: The model's tokenizer.
        text: The text. Names of special tokens are encoded as plain text.
        length: The number of tokens per chunk, at least 3.

    Returns:
        The token ids of each chunk. An incomplete last chunk is dropped.

    Raises:
        PromptError: If the length is less than 3, or if the text does not fill one chunk.
    """
    if length < SMALLEST_CHUNK:
        raise PromptError(
            f"[perplexity] length must be at least {SMALLEST_CHUNK}: got {length}"
        )
    ids = tokenizer.encode(text, bos=tokenizer.adds_bos, eos=False)
    if len(ids) < length:
        rule = "tokens of the text must be at least those of a chunk"
        raise PromptError(f"[perplexity] {rule}: {len(ids)} < {length}")
    return id_chunks(tokenizer, ids, length)


def id_chunks(tokenizer: Tokenizer, ids: Sequence[int], length: int) -> list[list[int]]:
    """Split token ids into chunks of equal length.

    If the tokenizer adds a beginning-of-text token, this token replaces the first token
    of each chunk.

    Args:
        tokenizer: The model's tokenizer.
        ids: The token ids of the text.
        length: The number of tokens per chunk.

    Returns:
        The token ids of each chunk. An incomplete last chunk is dropped.
    """
    starts = range(0, len(ids) - length + 1, length)
    chunks = [list(ids[start : start + length]) for start in starts]
    if tokenizer.adds_bos:
        for chunk in chunks:
            chunk[0] = tokenizer.bos_id
    return chunks


def score_chunks(
    transformer: LlamaTransformer,
    chunks: Sequence[Sequence[int]],
    reference: LlamaTransformer | None = None,
    adapters: ScaledAdapters = (),
) -> Iterator[ChunkScore]:
    """Run chunks of equal length, and score the tokens in the second half of each chunk.

    Args:
        transformer: The model to score.
        chunks: The token ids of each chunk, as returned by `text_chunks`.
        reference: A model with the same vocabulary to compare with, or None.
        adapters: LoRA adapters of the model to score, with their factors.

    Yields:
        The score for each chunk.

    Raises:
        NumericError: If a logit is not finite.
        ModelError: If the chunks are longer than the model's context.
        NotEnoughMemoryError: If the caches do not fit into memory.
    """
    length = len(chunks[0])
    model = _Runner(transformer, length, adapters)
    other = None if reference is None else _Runner(reference, length)
    for chunk in chunks:
        targets = np.asarray(chunk[length // 2 + 1 :], np.int64)
        if other is None:
            scored = ((at, _log_probabilities(rows)) for at, rows in model.run(chunk))
            losses = np.concatenate([_losses(rows, targets[at:]) for at, rows in scored])
            yield ChunkScore(losses, model.seconds)
            continue
        both = zip(model.run(chunk), other.run(chunk), strict=True)
        compared = [
            _compare(rows, theirs, targets[at:]) for (at, rows), (_, theirs) in both
        ]
        columns = zip(*compared, strict=True)
        losses, reference_losses, divergences, same_top = map(np.concatenate, columns)
        against = Divergence(reference_losses, divergences, same_top > 0)
        yield ChunkScore(losses, model.seconds, against)


def mean_estimate(values: Floats) -> Estimate:
    """Return the mean of values [n] and its standard error, sqrt(variance / (n - 1)).

    The standard error of a single value is 0.
    """
    error = math.sqrt(float(values.var()) / (values.size - 1)) if values.size > 1 else 0.0
    return Estimate(float(values.mean()), error)


def perplexity_of(losses: Floats) -> Estimate:
    """Return the perplexity, exp(mean loss), of losses [n] with its standard error."""
    mean = mean_estimate(losses)
    value = math.exp(mean.value)
    return Estimate(value, mean.error * value)


class _Runner:
    """A model with a cache, which runs chunks and measures the duration of each."""

    def __init__(
        self,
        transformer: LlamaTransformer,
        length: int,
        adapters: ScaledAdapters = (),
    ) -> None:
        self._adapters = adapters
        self._transformer = transformer
        self._context = InferenceContext(transformer.args, length)
        self.seconds = 0.0

    def run(self, chunk: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield logits [n, V] for n targets at a time, with the first target's index.

        The results are bit-identical to a single pass over the whole chunk.
        """
        first = len(chunk) // 2
        self.seconds = 0.0
        self._context.clear()
        self._forward(chunk[:first], 0)
        for at in range(first, len(chunk) - 1, _ROWS):
            logits = self._forward(chunk[at : min(at + _ROWS, len(chunk) - 1)], at)
            if not np.isfinite(logits).all():
                row, token = np.argwhere(~np.isfinite(logits))[0]
                raise NumericError(
                    f"[perplexity] logits must be finite: got {logits[row, token]} for "
                    f"token {token} at position {at + row}"
                )
            yield at - first, logits

    def _forward(self, ids: Sequence[int], position: int) -> Logits:
        """Run ids after the cached ones, and return their logits.

        In the first half of a chunk, only the last row of logits is computed.
        """
        start = time.perf_counter()
        is_second_half = position > 0
        wanted = len(ids) if is_second_half else 1
        with adapted_rows([(len(ids), wanted, self._adapters)]):
            logits = self._transformer.forward(
                self._context, ids, position, all_positions=is_second_half
            )
        self.seconds += time.perf_counter() - start
        values: Logits = logits.numpy()
        return values


def _log_probabilities(rows: Logits) -> Floats:
    """Return the log softmax of logits [n, V], as float64."""
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _losses(log_probabilities: Floats, targets: Ids) -> Floats:
    """Return the loss for each of the first n targets, given log p [n, V]."""
    rows = np.arange(len(log_probabilities))
    losses: Floats = -log_probabilities[rows, targets[: rows.size]]
    return losses


def _compare(
    rows: Logits, reference_rows: Logits, targets: Ids
) -> tuple[Floats, Floats, Floats, Floats]:
    """Compare a model with a reference model, given the logits [n, V] of both.

    Let q be the model's distribution and p the reference's. Return four float64 arrays
    [n]: -log q and -log p of the targets, sum(p * (log p - log q)), and 1 or 0 for
    whether both maxima are at the same token.
    """
    log_q = _log_probabilities(rows)
    log_p = _log_probabilities(reference_rows)
    divergences = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    same_top = (log_q.argmax(axis=1) == log_p.argmax(axis=1)).astype(np.float64)
    return _losses(log_q, targets), _losses(log_p, targets), divergences, same_top
