"""llama-perplexity's algorithm on llama.cpp's C functions: the oracle for `--perplexity`.

Source: llama.cpp, `tools/perplexity/perplexity.cpp`, `perplexity` and `process_logits`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.llama_cpp import LlamaCpp


def log_softmax(logits: Sequence[float] | Any) -> Any:
    """Return the logarithms of the probabilities of a row, float64 [V]."""
    wide = np.asarray(logits, np.float64)
    wide = wide - wide.max()
    return wide - math.log(np.exp(wide).sum())


def chunk_losses(other: LlamaCpp, chunk: Sequence[int]) -> list[float]:
    """Return -log p of the tokens of the second half of a chunk."""
    first = len(chunk) // 2
    logits = other.run_chunk(chunk, first)
    count = len(chunk) - first - 1
    return [-float(log_softmax(logits[j])[chunk[first + j + 1]]) for j in range(count)]


def perplexity(
    other: LlamaCpp, text: str, n_ctx: int, n_chunk: int = -1
) -> tuple[float, float, int]:
    """Return the perplexity of a text, its standard error, and the number of chunks."""
    bos, _, add_bos = other.special_ids
    tokens = ([bos] if add_bos else []) + other.tokenize(text.removesuffix("\n"))
    n_chunk_max = len(tokens) // n_ctx
    n_chunk = n_chunk_max if n_chunk < 0 else min(n_chunk, n_chunk_max)
    first = n_ctx // 2
    count = 0
    nll = nll2 = 0.0
    for i in range(n_chunk):
        start = i * n_ctx
        chunk = tokens[start : start + n_ctx]
        if add_bos:
            chunk[0] = bos
        for v in chunk_losses(other, chunk):
            nll += v
            nll2 += v * v
        count += n_ctx - first - 1
    nll2 /= count
    nll /= count
    nll2 -= nll * nll
    error = math.sqrt(nll2 / (count - 1))
    return math.exp(nll), error * math.exp(nll), n_chunk
