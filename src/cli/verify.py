"""`--verify`: compare a checkpoint's network and tokenizer with transformers.

Both networks compute in float32, one after the other. Our network runs first, in this
process. transformers then runs in a separate process (`reference.py`) and starts each
step from the result of `model/llama.py` for the previous step.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import __version__, ml, trace
from ..installation import install_hint
from ..model import (
    InferenceContext,
    LlamaTransformer,
    Model,
    ModelArgs,
    ModelError,
    NotEnoughMemoryError,
)
from ..model.forecast import check_float32_copy_fits
from ..model.saved_config import hugging_face_config
from ..trace.code import PACKAGE
from ..trace.events import STAGES
from ..trace.records import Event
from ..trace.tracer import Tracer
from ..untrusted import label_of
from .arguments import Options
from .console import Console, DifferenceError, UsageError
from .loading import open_model

Array: TypeAlias = npt.NDArray[np.float32]
# Arrays with one row per token, by "stage layer name" as in the trace. The layer is "-"
# for stages that are not part of a layer.
Stages: TypeAlias = dict[str, Any]

_PROMPT = (
    "Paris is the capital of France; in 2024 it had 2,102,650 inhabitants.\n\n"
    '"Déjà vu?" — she '
    "wrote  x = f(3.14159)  and 東京, Ελλάδα, 🙂. What comes next, and why don't we know?"
)
_TEXTS = (
    "Hello, world!",
    "  two  spaces\tand a tab\r\n\r\n",
    "12345678 I'LL they've",
    " e\u0301🇫🇷",
)
_MODULES = ("torch", "transformers", "tokenizers", "tiktoken", "sentencepiece")
_BY_HEAD = (11, 12, 13)  # stages whose results do not have one row per token
# Trace keys of the queries and keys that the scores are computed from, latest first.
_QUERIES_AND_KEYS = ("10 {} {}", "9 {} {}_normed", "8 {} {}_normed", "8 {} {}")
_MOST_TOKENS = 256  # limited because both processes keep the logits of all tokens
_COLUMNS = ("stage", "tensor", "layer", "difference", "relative", "bound", "")
# Random models of many shapes and the bundled model reach at most a sixth of these
# bounds. SmolLM2 reaches half of them, because in some rows of a trained model the terms
# of a sum cancel.
_MARGIN = 16.0


class _Row(NamedTuple):
    """A comparison: the largest error, absolute and relative to the RMS of its row."""

    stage: int
    tensor: str
    layer: str
    difference: float
    relative: float
    bound: float

    @property
    def is_ok(self) -> bool:
        """Whether the error is within the bound; False for NaN."""
        return self.relative <= self.bound

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table row."""
        errors = (f"{x:.1e}" if x else "0" for x in self[3:])
        stage = f"{self.stage} {STAGES[self.stage].name}"
        ok = "ok" if self.is_ok else "FAIL"
        return stage, self.tensor, self.layer.strip("-"), *errors, ok

    @property
    def failure(self) -> str:
        """A description of the failed comparison."""
        stage, tensor, layer, _, relative, bound, _ = self.cells
        of_layer = f" of layer {layer}" if layer else ""
        return (
            f"stage {stage}: {tensor}{of_layer}: relative error {relative}, bound {bound}"
        )


def report_verify(options: Options, console: Console) -> None:
    """Compare a model with transformers; raise DifferenceError if they differ."""
    model = open_model(options, console)
    if model.source.verified_as is None:
        raise UsageError(
            "--verify: expected a model directory, got a GGUF file; --dequantize "
            "--save-quantized DIR converts it"
        )
    if model.source.has_other_parts:
        raise UsageError("--verify: expected a model of text alone, got one with images")
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        raise UsageError(
            "--verify: expected transformers and its dependencies, got no "
            f"{', '.join(missing)}: {install_hint('oracle')}"
        )
    check_float32_copy_fits(model.parameter_count)
    ids = _prompt_ids(model, _PROMPT if options.prompt is None else options.prompt)
    console.show_progress("running the network in float32")
    ours, logits, gain = _run(model, ids)
    console.show_progress("running transformers in float32")
    try:
        theirs, reply = _run_transformers(model, ids, ours)
    finally:
        console.clear_progress()
    rows = [
        *_compare_ids(model, reply["ids"]),
        *_compare_stages(model, ours, logits, gain, theirs),
    ]
    console.report_heading(model.description)
    console.report(
        f"prompt: {model.tokenizer.decode(ids) if model.tokenizer else ids}", ""
    )
    visible = rows if options.verbose else _one_for_all_layers(rows)
    console.report_table(_COLUMNS, [row.cells for row in visible], "<<>>>><")
    failed = next((row for row in rows if not row.is_ok), None)
    verdict = "every stage is within its bound" if failed is None else failed.failure
    args = model.args
    dtype = model.tensors["layers.0.attention.wq.weight"].dtype
    console.report(
        "",
        f"verdict: {'ok' if failed is None else 'FAIL'}: {verdict} (llama-bolts "
        f"{__version__}, {ml.build_info()['isa']}; {reply['versions']}; "
        f"{model.checkpoint.source_format}, {dtype}, {args.n_layers} layers, D "
        f"{args.dim}, {args.n_heads}/{args.n_kv_heads} heads; {len(ids)} tokens; both in "
        "float32)",
    )
    if failed is not None:
        raise DifferenceError(f"--verify: {verdict}")


def _one_for_all_layers(rows: Iterable[_Row]) -> Iterable[_Row]:
    """Return each tensor's first failed row, or else its row with the largest error."""
    chosen: dict[tuple[int, str], _Row] = {}
    for row in rows:
        other = chosen.setdefault((row.stage, row.tensor), row)
        if other.is_ok and not (row.is_ok and row.relative <= other.relative):
            chosen[row.stage, row.tensor] = row
    return chosen.values()


def _prompt_ids(model: Model, text: str) -> list[int]:
    """Return a text's token ids, or without a tokenizer, ids spread over all rows."""
    tokenizer = model.tokenizer
    vocab_size = model.args.vocab_size
    if tokenizer is None:
        ids = [n * vocab_size // 64 for n in range(min(64, vocab_size))]
    else:
        ids = tokenizer.encode(text, bos=tokenizer.adds_bos, eos=False)
    if not ids:
        raise UsageError("--verify: expected a prompt of at least one token, got none")
    return ids[: min(_MOST_TOKENS, model.args.max_context_length)]


def _run(model: Model, ids: list[int]) -> tuple[Stages, Array, float]:
    """Run the network in float32: first all tokens except the last one, then the last.

    Returns three values:

    1. The results of each traced stage, with one row per token and heads in Hugging
       Face's order.
    2. The logits [T, V], computed without a trace.
    3. The ratio of the logits' error to a relative error in the norm weights.
    """
    args = replace(model.args, dtype=ml.float32)
    tensors = {  # float32 products accept weights of all other dtypes
        name: weight.to(ml.float32)
        if isinstance(weight, ml.Tensor) and weight.dtype is ml.bfloat16
        else weight
        for name, weight in model.tensors.items()
    }
    network_class = type(model.transformer)
    network = network_class(args, tensors)
    context = InferenceContext(args, len(ids))
    parts = [part for part in (ids[:-1], ids[-1:]) if part]
    logits = np.concatenate(
        [network.forward(context, part, context.length, True).numpy() for part in parts]
    )
    signs = np.random.default_rng(0)
    error = 2.0**-12
    disturbed = {
        name: ml.tensor(
            np.asarray(weight) * (1 + error * signs.choice((-1, 1), weight.shape))
        )
        for name, weight in tensors.items()
        if name.endswith("norm.weight")
    }
    other = network_class(args, tensors | disturbed)
    moved = other.forward(InferenceContext(args, len(ids)), ids, 0, True).numpy()
    gain = max(1.0, _errors(moved, logits)[1] / error)
    context.clear()
    traced = [_traced(network, context, part) for part in parts]
    stages = {key: np.concatenate([part[key] for part in traced]) for key in traced[-1]}
    for key in [key for key in stages if key.endswith((" xq", " xk"))]:
        # Stage 10 always returns interleaved pairs.
        if args.rope_pairs == "interleaved" or key.startswith("10 "):
            pairs = stages[key].reshape(len(ids), -1, args.head_dim // 2, 2)
            stages[key] = pairs.swapaxes(2, 3).reshape(len(ids), -1)
    return stages, logits, gain


def _traced(
    network: LlamaTransformer, context: InferenceContext, ids: list[int]
) -> Stages:
    """Return the last result with each name in each stage of a pass."""
    results: Stages = {}

    def keep(event: Event) -> None:
        layer = "-" if event.layer is None else event.layer
        for output in event.outputs:
            key = f"{event.stage} {layer} {output.name}"
            values = output.values
            if values is not None and event.stage not in _BY_HEAD:
                results[key] = values.reshape(len(values), -1)

    trace.start(Tracer(network.args.sizes, keep, values=lambda *_: True))
    try:
        network.forward(context, ids, context.length, all_positions=True)
    finally:
        trace.stop()
    return results


def _run_transformers(
    model: Model, ids: list[int], ours: Stages
) -> tuple[Stages, dict[str, Any]]:
    """Run transformers in a separate process; return its stages and its reply."""
    source = model.source
    reads_directory = source.verified_as == "directory"
    names = ["tokenizer.model", "tokenizer.json"]
    if reads_directory:
        names.reverse()
    paths = [folder / name for folder in (source.path, source.top) for name in names]
    tokenizer = next((str(path.absolute()) for path in paths if path.is_file()), None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.savez(folder / "ours.npz", **ours)
        request = {
            "directory": str(source.path.absolute()),
            "weights": source.verified_as if source.quantization is None else "quantized",
            "tokenizer": tokenizer,
            "texts": [_PROMPT, *_TEXTS],
            "ids": ids,
            "threads": ml.get_num_threads(),
        }
        (folder / "request.json").write_text(json.dumps(request), "utf-8")
        config = hugging_face_config(model.args, None, "float32", source.model_type)
        config["tie_word_embeddings"] = "output.weight" not in model.tensors
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        process = subprocess.run(
            [sys.executable, "-m", f"{__package__}.reference", folder],
            cwd=PACKAGE.parent,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode == -signal.SIGKILL:
            raise NotEnoughMemoryError(
                "memory: expected enough for transformers, but its process was killed"
            )
        if process.returncode:
            reason = (process.stderr.splitlines() or [f"exit code {process.returncode}"])[
                -1
            ]
            raise ModelError(f"{label_of(source.path)}: --verify: transformers: {reason}")
        with np.load(folder / "theirs.npz") as theirs:
            return dict(theirs), json.loads((folder / "reply.json").read_text("utf-8"))


def _compare_ids(model: Model, theirs: list[list[int]] | None) -> Iterator[_Row]:
    """Yield a comparison of token ids, if both sides have a tokenizer."""
    if theirs is not None and model.tokenizer is not None:
        texts = (_PROMPT, *_TEXTS)
        ours = [model.tokenizer.encode(text, bos=False, eos=False) for text in texts]
        wrong = [text for text, x, y in zip(texts, ours, theirs, strict=True) if x != y]
        name = f"ids of {wrong[0]!a}" if wrong else f"ids of {len(texts)} texts"
        yield _Row(1, name, "-", len(wrong), len(wrong) / len(texts), 0.0)


def _compare_stages(
    model: Model, ours: Stages, logits: Array, gain: float, theirs: Stages
) -> Iterator[_Row]:
    """Yield the comparisons of tensors in order of execution, then of the best tokens."""
    bounds = []
    for key in (key for key in theirs if key != "logits"):  # in order of execution
        stage, layer, name = key.split()
        score = _largest_score(model.args, ours, layer) if name == "output" else 0.0
        bounds.append(_bound(model.args, int(stage), name, len(logits), score))
        yield _Row(int(stage), name, layer, *_errors(ours[key], theirs[key]), bounds[-1])
    whole = theirs["logits"]
    total = max(sum(bounds), gain * max(bounds))
    yield _Row(19, "logits of the whole network", "-", *_errors(logits, whole), total)
    gap = whole.max(1) - whole[np.arange(len(whole)), logits.argmax(1)]
    relative = gap / _root_mean_square(whole)[:, 0]
    text = f"most likely of {len(whole)} tokens"
    yield _Row(20, text, "-", float(gap.max()), float(relative.max()), 2 * total)


def _largest_score(args: ModelArgs, ours: Stages, layer: str) -> float:
    """Return the largest score that queries and keys of these lengths can have.

    The error of a sum grows with the size of its terms. In a trained model, the terms are
    several times as large as the sum, because most of them cancel.
    """
    scale = 1 / args.score_divisor
    for name in ("xq", "xk"):
        keys = (key.format(layer, name) for key in _QUERIES_AND_KEYS)
        rows = next(ours[key] for key in keys if key in ours)
        heads = rows.reshape(len(rows), -1, args.head_dim)
        scale *= float(np.linalg.norm(heads, axis=2).max())
    return scale


def _bound(args: ModelArgs, stage: int, name: str, S: int, score: float) -> float:
    """Return the bound on a step's rounding error: margin * eps * sqrt(n).

    n is the number of terms that are summed for an element, because independent errors
    grow with the square root of their number. transformers rounds rotary angles to
    float32, which counts as S^2 terms. An error in the scores is an error in a
    logarithmic probability and counts as the square of the largest possible score. An
    element of an elementwise product can be sqrt(F) times the RMS. Copied rows and sums
    of the same two values must be bit-identical.
    """
    D = args.dim
    F = args.ffn_dim
    h = args.head_dim
    Hh = args.n_heads * args.head_dim
    n = {6: D, 8: D, 10: S**2, 14: Hh, 16: D, 17: F, 19: D}.get(stage, 0.0)
    n = {"output": h + S + score**2, "gate": D, "up": D, "normed": D}.get(name, n)
    n = Hh if name in ("xq_normed", "xk_normed") else n
    return _MARGIN * float(np.finfo(np.float32).eps) * math.sqrt(n)


def _errors(ours: Array, theirs: Array) -> tuple[float, float]:
    """Return the largest absolute error and the largest error over the RMS of its row."""
    difference = np.abs(ours.astype(np.float64) - theirs)
    return float(difference.max()), float((difference / _root_mean_square(theirs)).max())


def _root_mean_square(rows: Array) -> npt.NDArray[np.float64]:
    squares: npt.NDArray[np.float64] = np.square(rows, dtype=np.float64).mean(
        1, keepdims=True
    )
    return np.sqrt(squares).clip(np.finfo(np.float32).tiny)
