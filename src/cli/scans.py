"""`--make-vector`, `--patch-scan` and `--ablate-scan`: reports of changed runs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..drawing.heat_map import heat_map_lines, heat_map_svg
from ..inference import PromptError, SamplingArgs
from ..inference.patching import scan_ablations, scan_patches
from ..inference.vectors import save_vectors, steering_vectors
from ..model.places import feed_forward_address, head_address
from ..tokenizer import Tokenizer
from ..untrusted import check_writable, label_of
from .answer import token_text
from .arguments import Options
from .console import Console, UsageError, usage_errors
from .loading import open_model_to_run, required_tokenizer
from .new_session import open_session
from .perplexity import open_text
from .saved_chat import read_text

_MOST_BYTES = 1 << 22  # maximum size of a file of texts
_MOST_LISTED = 10  # places in a table


def report_vector(options: Options, console: Console) -> None:
    """Make a steering vector of each layer, write them, and print their sizes."""
    path = options.make_vector
    assert path is not None
    if len(options.vector_texts) != 2:
        raise UsageError("--make-vector: needs --vector-texts TOWARDS AWAY")
    check_writable(path, UsageError)
    model, _ = open_model_to_run(options, console)
    tokenizer = required_tokenizer(model)
    layers = model.args.n_layers
    layer = layers // 2 if options.vector_layer is None else options.vector_layer
    if layer >= layers:
        raise UsageError(
            f"--vector-layer: expected a layer from 0 to {layers - 1}, got {layer}"
        )
    towards, away = (_texts(tokenizer, Path(name)) for name in options.vector_texts)
    try:
        vectors = steering_vectors(model, towards, away)
    except PromptError as error:
        raise UsageError(f"--vector-texts: {error}") from None
    path.unlink(missing_ok=True)
    with usage_errors(f"{path}: --make-vector: expected a writable file"):
        save_vectors(path, vectors, layer)
    norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    console.report_heading(f"{label_of(path)} by {model.source.name}")
    console.report_table(
        ("", ""),
        [
            ("texts", f"{len(towards)} towards, {len(away)} away"),
            ("layer", f"{layer} of {layers}"),
            ("norm of its vector", f"{norms[layer]:.3f}"),
            ("norms of all layers", " ".join(f"{norm:.2f}" for norm in norms)),
        ],
    )


def _texts(tokenizer: Tokenizer, path: Path) -> list[list[int]]:
    """Return the token ids of each line of a file."""
    lines = read_text(path, _MOST_BYTES).splitlines()
    return [
        tokenizer.encode(line, bos=tokenizer.adds_bos, eos=False)
        for line in lines
        if line.strip()
    ]


def report_patches(options: Options, console: Console) -> None:
    """Print which places of a prompt's run carry the difference to another prompt."""
    other = options.patch_scan
    question = options.prompt
    assert other is not None
    assert question is not None
    _check_files(options)
    session = open_session(options, console)
    model = session.engine.model
    ids = session.ids_of_question(question)
    other_ids = session.ids_of_question(other)
    place = options.patch_at or 1
    if place > 1:
        steps = session.engine.generate(
            ids, place - 1, SamplingArgs(temperature=0.0), new_text=True
        )
        begun = [step.token_id for step in steps]
        ids = ids + begun
        other_ids = other_ids + begun
    try:
        scan = scan_patches(model, ids, other_ids, _progress(console))
    except PromptError as error:
        raise UsageError(f"--patch-scan: {error}") from None
    finally:
        console.clear_progress()
    tokenizer = session.tokenizer
    texts = [token_text(tokenizer, token) for token in ids]
    answers = [token_text(tokenizer, t) for t in (scan.answer, scan.other_answer)]
    console.report_heading(f"from {answers[0]} to {answers[1]} by {model.source.name}")
    measures = f"{scan.measure:.3f} here, {scan.other_measure:.3f} in the other run"
    console.report(f"logit of {answers[0]} - logit of {answers[1]}: {measures}")
    console.report("", "residual stream after each layer, by position:")
    console.report(*heat_map_lines(scan.residual.tolist(), 1.0, "layer"))
    console.report("", "heads, at all positions:")
    console.report(*heat_map_lines(scan.heads.tolist(), 1.0, "layer"))
    console.report("", "feed-forward, at all positions:")
    console.report(*heat_map_lines(scan.feed_forward[:, None].tolist(), 1.0, "layer"))
    console.report("")
    rows = [
        *_largest(scan.residual, lambda layer, at: f"x[layer {layer}]@{at} {texts[at]}"),
        *_largest(scan.heads, head_address),
        *_largest(
            scan.feed_forward[:, None], lambda layer, _: feed_forward_address(layer)
        ),
    ]
    rows.sort(key=lambda row: -abs(float(row[1])))
    console.report_table(("place", "effect"), rows[:_MOST_LISTED], "<>")
    data = {
        "kind": "patches",
        "model": model.source.name,
        "tokens": ids,
        "other_tokens": other_ids,
        "texts": texts,
        "answer": answers[0],
        "other_answer": answers[1],
        "measure": scan.measure,
        "other_measure": scan.other_measure,
        "residual": scan.residual.tolist(),
        "heads": scan.heads.tolist(),
        "feed_forward": scan.feed_forward.tolist(),
    }
    title = f"effect of the residual stream: from {answers[0]} to {answers[1]}"
    labels = [f"{at} {text}" for at, text in enumerate(texts)]
    _write_files(options, data, heat_map_svg(data["residual"], 1.0, title, labels))


def report_ablations(options: Options, console: Console) -> None:
    """Print the loss of a text with each head and each feed-forward switched off."""
    path = options.ablate_scan
    assert path is not None
    _check_files(options)
    model, _, chunks = open_text(options, console, path)
    try:
        scan = scan_ablations(model, chunks, _progress(console))
    finally:
        console.clear_progress()
    table = np.concatenate([scan.heads, scan.feed_forward[:, None]], axis=1) - scan.loss
    heads = model.args.n_heads
    console.report_heading(f"{label_of(path)} by {model.source.name}")
    count = f"{len(chunks)} of {len(chunks[0])}, {scan.tokens} scored tokens"
    facts = [("chunks", count), ("loss per token", f"{scan.loss:.4f}")]
    console.report_table(("", ""), facts)
    console.report("", "increase of the loss without each head, and feed-forward (last):")
    most_of_heads = float(table[:, :heads].max())
    for lines in zip(
        heat_map_lines(table[:, :heads].tolist(), most_of_heads, "layer"),
        heat_map_lines(table[:, heads:].tolist(), float(table[:, heads].max()), ""),
        strict=True,
    ):
        console.report(f"{lines[0]}  {lines[1][-1]}")
    console.report("")

    def name(layer: int, at: int) -> str:
        is_head = at < heads
        return head_address(layer, at) if is_head else feed_forward_address(layer)

    largest = _largest(table, name)
    rows = [(place, f"{float(rise):+.4f}") for place, rise in largest]
    console.report_table(("switched off", "loss"), rows, "<>")
    data = {
        "kind": "ablations",
        "model": model.source.name,
        "text": label_of(path),
        "tokens": scan.tokens,
        "loss": scan.loss,
        "heads": scan.heads.tolist(),
        "feed_forward": scan.feed_forward.tolist(),
    }
    title = "increase of the loss without each head"
    labels = [f"head {head}" for head in range(heads)]
    values = table[:, :heads].tolist()
    _write_files(options, data, heat_map_svg(values, most_of_heads, title, labels))


def _progress(console: Console) -> Callable[[int, int], None] | None:
    return console.timed_progress("running the model", "runs")


def _largest(
    values: np.ndarray[Any, Any], name: Callable[[int, int], str]
) -> list[tuple[str, str]]:
    """Return the places with the largest magnitudes, with their values."""
    order = np.argsort(-np.abs(values), axis=None, kind="stable")[:_MOST_LISTED]
    places = np.stack(np.unravel_index(order, values.shape), axis=1).tolist()
    return [(name(layer, at), f"{values[layer, at]:.3f}") for layer, at in places]


def _check_files(options: Options) -> None:
    for path in (options.scan_json, options.scan_plot):
        if path is not None:
            check_writable(path, UsageError)


def _write_files(options: Options, data: dict[str, Any], plot: str) -> None:
    """Write the numbers of a scan and its plot, if requested."""
    texts: Sequence[tuple[Path | None, str, str]] = (
        (options.scan_json, "--scan-json", json.dumps(data) + "\n"),
        (options.scan_plot, "--scan-plot", plot),
    )
    for path, flag, text in texts:
        if path is not None:
            with usage_errors(f"{path}: {flag}: expected a writable file"):
                path.write_text(text, encoding="utf-8")
