"""`--perplexity` and `--kl-divergence`: how well a model predicts a text."""

import math
from pathlib import Path

import numpy as np

from ..inference.perplexity import (
    DEFAULT_CHUNK,
    SMALLEST_CHUNK,
    ChunkScore,
    Divergence,
    Estimate,
    id_chunks,
    mean_estimate,
    perplexity_of,
    score_chunks,
)
from ..inference.sampling import Floats
from ..ml import ScaledAdapters
from ..model import Model
from ..tokenizer import Tokenizer
from ..untrusted import label_of
from .arguments import Options
from .console import Console, UsageError
from .loading import (
    open_adapters,
    open_model_to_run,
    open_second_model,
    required_tokenizer,
)
from .saved_chat import read_text

_MOST_BYTES = 1 << 26  # maximum size of the text; a larger one would take days


def report_perplexity(options: Options, console: Console) -> None:
    """Print the perplexity of a text, and the KL divergence if a reference is given."""
    path = options.perplexity
    assert path is not None
    model, adapters, chunks = open_text(options, console, path)
    length = len(chunks[0])
    reference = None
    if options.kl_divergence is not None:
        reference = _open_reference(
            options, console, model, length, options.kl_divergence
        )

    total = len(chunks) * length
    progress = console.timed_progress("scoring the text", "tokens")
    scores: list[ChunkScore] = []
    transformer = None if reference is None else reference.transformer
    try:
        for score in score_chunks(model.transformer, chunks, transformer, adapters):
            scores.append(score)
            if progress is not None:
                progress(len(scores) * length, total)
    finally:
        console.clear_progress()

    losses = np.concatenate([score.losses for score in scores])
    seconds = sum(score.seconds for score in scores)
    facts = [
        ("tokens", f"{total}, in {len(chunks)} chunks of {length}"),
        ("scored tokens", str(losses.size)),
        ("perplexity", _with_error(perplexity_of(losses), 4)),
        ("tokens/s", f"{total / seconds:.0f}"),
    ]
    against = [score.against for score in scores if score.against is not None]
    if reference is not None:
        facts += _comparison(losses, against)
    console.report_heading(f"{label_of(path)} by {model.source.name}")
    console.report_table(("", ""), facts)


def open_text(
    options: Options, console: Console, path: Path
) -> tuple[Model, ScaledAdapters, list[list[int]]]:
    """Load the model and its adapters; return them and the chunks of a text."""
    # As in llama-perplexity, the last newline is not part of the text.
    text = read_text(path, _MOST_BYTES).removesuffix("\n")
    model, positions = open_model_to_run(options, console)
    adapters = open_adapters(options, model, console)
    tokenizer = required_tokenizer(model)
    length = (
        positions if options.context_length is not None else min(DEFAULT_CHUNK, positions)
    )
    if length < SMALLEST_CHUNK:
        expected = f"at least {SMALLEST_CHUNK} for --perplexity"
        raise UsageError(f"--context-length: expected {expected}, got {length}")
    chunks = _chunks_of(path, text, tokenizer, length)[: options.chunks]
    return model, adapters, chunks


def _chunks_of(
    path: Path, text: str, tokenizer: Tokenizer, length: int
) -> list[list[int]]:
    """Return a text's chunks of tokens; raise UsageError if it is too short for one."""
    ids = tokenizer.encode(text, bos=tokenizer.adds_bos, eos=False)
    if len(ids) < length:
        expected = f"at least the {length} tokens of a chunk (-c sets a smaller length)"
        raise UsageError(f"{label_of(path)}: text: expected {expected}, got {len(ids)}")
    return id_chunks(tokenizer, ids, length)


def _open_reference(
    options: Options, console: Console, model: Model, length: int, other: Path
) -> Model:
    """Load the reference model and check that it has the same vocabulary."""
    reference = open_second_model(options, console, model, length, other)
    expected = model.args.vocab_size
    actual = reference.args.vocab_size
    if expected != actual:
        raise UsageError(
            f"--kl-divergence: {label_of(other)}: vocabulary: expected {expected} "
            f"tokens as in the model, got {actual}"
        )
    token = required_tokenizer(model).first_difference(required_tokenizer(reference))
    if token is not None:
        raise UsageError(
            f"--kl-divergence: {label_of(other)}: vocabulary: expected the tokens of "
            f"the model, got another token {token}"
        )
    return reference


def _comparison(losses: Floats, against: list[Divergence]) -> list[tuple[str, str]]:
    """Return the rows that compare with a reference, named as in llama-perplexity."""
    reference_losses = np.concatenate([part.losses for part in against])
    divergences = np.concatenate([part.divergences for part in against])
    same_top = np.concatenate([part.same_top for part in against])
    changes = np.exp(-losses) - np.exp(-reference_losses)
    share = float(same_top.mean())
    share_error = math.sqrt(share * (1 - share) / max(same_top.size - 1, 1))
    return [
        ("perplexity of the reference", _with_error(perplexity_of(reference_losses), 4)),
        ("KL divergence, mean", _with_error(mean_estimate(divergences), 6)),
        ("KL divergence, median", f"{np.median(divergences):.6f}"),
        ("KL divergence, 99 %", f"{np.quantile(divergences, 0.99):.6f}"),
        ("KL divergence, maximum", f"{divergences.max():.6f}"),
        (
            "change of a token's probability, rms",
            f"{100 * np.sqrt((changes**2).mean()):.3f} %",
        ),
        ("same most probable token", f"{100 * share:.3f} ± {100 * share_error:.3f} %"),
    ]


def _with_error(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} ± {estimate.error:.{digits + 1}f}"
