"""`--bench`: the speed of a model, and the limits of the machine."""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from .. import ml
from ..checkpoint.names import is_harmless
from ..inference import NumericError
from ..ml import roofline
from ..model import InferenceContext, Model, ModelArgs, kv_cache_bytes
from .arguments import Options
from .console import Console, UsageError
from .loading import open_model_to_run
from .reports import exact_bytes

PROMPT_TOKENS = 128
STEPS = 8
ROUNDS = 3
_SPEEDS = ("speed", "tokens/s", "this machine's limit", "share")


def _row(title: str, rates: list[float], limits: list[float]) -> tuple[str, ...]:
    """Return the cells of a table row.

    Args:
        title: The name of the row.
        rates: The measured rates in tokens per second.
        limits: The limit measured in each round. The highest one is used.
    """
    speed = statistics.median(rates)
    limit = max(limits, default=0.0)
    if limit < speed:  # the limit is unknown, or its probe was slower than the model
        return title, _readable(speed), "unknown", ""
    return title, _readable(speed), _readable(limit), f"{100 * speed / limit:.0f} %"


def report_bench(options: Options, console: Console) -> None:
    """Print the speed of a model and the machine's limits, measured alternately.

    A prompt is limited by multiply-adds. A single token is limited by reading the weights
    and the cache.
    """
    model, positions = open_model_to_run(options, console)
    if positions < 2:
        raise UsageError(
            f"--context-length: expected at least 2 for --bench, got {positions}"
        )
    steps = min(STEPS, positions // 2)
    prompt = min(PROMPT_TOKENS, positions - steps)
    console.note(
        f"measuring a prompt of {prompt} and {steps} tokens after it, {ROUNDS} times"
    )
    context = InferenceContext(model.args, positions)
    weights = weights_of_a_step(model)
    _seconds(model, context, 1, 0)  # read the weights from disk before measuring
    reader = roofline.fastest_reading(weights)
    # Products with 8-bit weights use integer arithmetic, whose limit is not measured.
    adds_integers = any(
        weight.dtype is ml.int8_block for weight in model.tensors.values()
    )
    dtype = model.args.feed_forward_dtype or model.args.dtype
    multiply_rates = list[float]()
    read_rates = []
    rounds = []
    for _ in range(ROUNDS):
        rate = None if adds_integers else roofline.multiply_add_rate(dtype.name)
        multiply_rates += [] if rate is None else [rate]
        read_rates.append(roofline.read_rate(weights, *reader))
        rounds.append(_seconds(model, context, prompt, steps))
    work = operations(model.args, 0, prompt)
    weight_bytes = sum(tensor.nbytes for tensor in weights)
    cache_bytes = kv_cache_bytes(model.args, prompt)
    reading = [prompt / first for first, *_ in rounds]
    decoding = [1 / statistics.median(each) for _, *each in rounds]
    read_limits = [rate / (weight_bytes + cache_bytes) for rate in read_rates]
    info = ml.build_info()
    facts = (
        ("prompt tokens", str(prompt)),
        ("tokens one after the other", str(steps)),
        ("bytes per token, weights", exact_bytes(weight_bytes)),
        ("bytes per token, cache of the prompt", exact_bytes(cache_bytes)),
        ("reading the weights", _median(read_rates, "GB/s")),
        ("multiply-adds", f"{_median(multiply_rates, 'GFLOPS')}, {info['isa']}"),
        ("threads", str(info["threads"])),
    )
    speeds = (
        _row("prompt", reading, [rate * prompt / work for rate in multiply_rates]),
        _row("one token after the other", decoding, read_limits),
    )
    console.report_heading(model.description)
    console.report("")
    console.report_table(_SPEEDS, speeds, "<>>>")
    console.report("")
    console.report_table(("", ""), facts)


def _seconds(
    model: Model, context: InferenceContext, prompt: int, steps: int
) -> list[float]:
    """Run a prompt on an empty cache, then single tokens; return each pass's time."""
    context.clear()
    ids = [token % model.args.vocab_size for token in range(prompt + steps)]
    seconds = []
    for part in (ids[:prompt], *([token] for token in ids[prompt:])):
        position = context.length
        start = time.perf_counter()
        logits = model.transformer.forward(context, part, position)
        seconds.append(time.perf_counter() - start)
        if not np.isfinite(logits.numpy()).all():
            raise NumericError(
                f"[bench] logits at position {position} must be finite: got nan"
            )
    return seconds


def weights_of_a_step(model: Model) -> list[ml.Tensor]:
    """Return the weights that are read for each token.

    They are all weights except untied embeddings and the experts that a token does not
    use. All experts of a layer have the same size, so the first ones stand for others.
    """
    tied = "output.weight" not in model.tensors
    unused = model.args.unused_by_a_token
    return [
        part
        for name, weight in model.tensors.items()
        if not is_harmless(name)
        and (tied or name != "tok_embeddings.weight")
        and name not in unused
        for part in ((weight,) if isinstance(weight, ml.Tensor) else weight.parts())
    ]


def operations(args: ModelArgs, position: int, rows: int) -> float:
    """Count the operations of a pass: rows * 2 * matrices + 2 * D * V + attention.

    With experts, the matrices are the router and those of the experts that a token uses.
    Each addition and each multiplication counts as one operation.
    """
    D = args.dim
    F = args.ffn_dim
    h = args.head_dim
    feed_forwards = args.n_active_experts or 1
    matrices = 2 * D * args.n_heads * h + 2 * D * args.n_kv_heads * h
    matrices += feed_forwards * 3 * D * F + args.n_experts * D
    linear = 2.0 * rows * matrices * args.n_layers + 2.0 * D * args.vocab_size
    return linear + attention_operations(args, position, rows)


def attention_operations(args: ModelArgs, position: int, rows: int) -> float:
    """Count only the attention operations.

    The result is 4 * H * h * L * (visible positions, summed over all rows).
    """
    seen = rows * position + rows * (rows + 1) // 2
    return 4.0 * args.n_heads * args.head_dim * args.n_layers * seen


def _median(rates: Sequence[float], unit: str) -> str:
    return f"{1e-9 * statistics.median(rates):.1f} {unit}" if rates else "unknown"


def _readable(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.2g}" if rate < 1 else f"{rate:.1f}"
