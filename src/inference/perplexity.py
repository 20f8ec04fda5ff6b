"""How well a model predicts a text: perplexity, and divergence from another model.

The conventions are those of llama-perplexity, so the results can be compared. The text is
cut into chunks of `length` tokens, and each chunk is run from an empty cache. If texts of
the vocabulary begin with a token, that token replaces the first token of each chunk. Only
tokens of the second half of a chunk count, because the first tokens of a chunk have too
little context.

Source: llama.cpp, `tools/perplexity/perplexity.cpp`.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..model import InferenceContext, LlamaTransformer
from ..tokenizer import Tokenizer
from .errors import NumericError, PromptError
from .sampling import Floats, Ids, Logits

DEFAULT_CHUNK = 512
SMALLEST_CHUNK = 3  # the smallest length with a token in its second half
_ROWS = 64  # rows of logits in memory at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens, or a function of it, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Divergence:
    """A reference's losses on the tokens of a chunk, and a model's divergence from it.

    Attributes:
        losses: -log p of each token by the reference, float64 [n].
        divergences: KL(reference || model) at each token, in nats, float64 [n].
        same_top: Whether the most probable token of both models is the same, bool [n].
    """

    losses: Floats
    divergences: Floats
    same_top: np.typing.NDArray[np.bool_]


@dataclass(frozen=True)
class ChunkScore:
    """How well a model predicts the tokens of one chunk that count.

    Attributes:
        losses: -log p of each token, float64 [n].
        seconds: The time that the model took to run the chunk.
        against: The comparison with a reference, or None without a reference.
    """

    losses: Floats
    seconds: float
    against: Divergence | None = None


def text_chunks(tokenizer: Tokenizer, text: str, length: int) -> list[list[int]]:
    """Cut a text into whole chunks of tokens.

    Args:
        tokenizer: The tokenizer of the model.
        text: The text, none of which becomes a special token.
        length: The tokens of a chunk, at least 3.

    Returns:
        The ids of each chunk. The rest of the text that does not fill a chunk is dropped.

    Raises:
        PromptError: The length is below 3, or the text does not fill one chunk.
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
    """Cut ids into whole chunks, each with the token that begins a text if any.

    Args:
        tokenizer: The tokenizer of the model.
        ids: The ids of the text.
        length: The tokens of a chunk.

    Returns:
        The ids of each chunk, without the rest that does not fill a chunk.
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
) -> Iterator[ChunkScore]:
    """Run chunks of one length, and score the tokens of the second half of each.

    Args:
        transformer: The model that is scored.
        chunks: The ids of each chunk, as `text_chunks` returns them.
        reference: A model with the same vocabulary to compare with.

    Yields:
        The score of each chunk.

    Raises:
        NumericError: A logit is not finite.
        ModelError: The chunks are longer than the model's context.
        NotEnoughMemoryError: The caches do not fit.
    """
    length = len(chunks[0])
    model = _Runner(transformer, length)
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
    """Return the mean of values [n] and its error, sqrt(variance / (n - 1)).

    The error of a single value is 0.
    """
    error = math.sqrt(float(values.var()) / (values.size - 1)) if values.size > 1 else 0.0
    return Estimate(float(values.mean()), error)


def perplexity_of(losses: Floats) -> Estimate:
    """Return exp(mean loss) of losses [n], and the error of the mean times it."""
    mean = mean_estimate(losses)
    value = math.exp(mean.value)
    return Estimate(value, mean.error * value)


class _Runner:
    """A model, the cache for its chunks, and the duration of the newest chunk."""

    def __init__(self, transformer: LlamaTransformer, length: int) -> None:
        self._transformer = transformer
        self._context = InferenceContext(transformer.args, length)
        self.seconds = 0.0

    def run(self, chunk: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits [n, V] for some targets, with the index of the first target.

        The passes give the same bits as one pass of the whole chunk.
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
        """Run ids after the cached ones; return the logits [n, V] that are needed."""
        start = time.perf_counter()
        is_second_half = position > 0
        logits = self._transformer.forward(
            self._context, ids, position, all_positions=is_second_half
        )
        self.seconds += time.perf_counter() - start
        values: Logits = logits.numpy()
        return values


def _log_probabilities(rows: Logits) -> Floats:
    """Return log softmax(logits) of rows [n, V], float64 [n, V]."""
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _losses(log_probabilities: Floats, targets: Ids) -> Floats:
    """Return -log p of the first targets by rows of log p [n, V], float64 [n]."""
    rows = np.arange(len(log_probabilities))
    losses: Floats = -log_probabilities[rows, targets[: rows.size]]
    return losses


def _compare(
    rows: Logits, reference_rows: Logits, targets: Ids
) -> tuple[Floats, Floats, Floats, Floats]:
    """Compare a model with a reference for the tokens of some rows.

    p is the distribution of the reference, q of the model. Return float64 [n] each: -log
    q and -log p of the targets, sum(p * (log p - log q)), and whether both maxima agree.
    """
    log_q = _log_probabilities(rows)
    log_p = _log_probabilities(reference_rows)
    divergences = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    same_top = (log_q.argmax(axis=1) == log_p.argmax(axis=1)).astype(np.float64)
    return _losses(log_q, targets), _losses(log_p, targets), divergences, same_top
