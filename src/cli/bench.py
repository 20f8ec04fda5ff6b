"""`--bench`: how fast this machine runs a model, and how fast it could at most."""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from .. import ml
from ..checkpoint.names import is_harmless
from ..inference import NumericError
from ..ml import roofline
from ..model import InferenceContext, Model, ModelArgs, kv_cache_bytes
from .console import Console, UsageError
from .reports import exact_bytes

PROMPT_TOKENS = 128
STEPS = 8
ROUNDS = 3
BUDGET_SECONDS = 8.0  # after which no further round is begun
_SPEEDS = (
    ("speed", "left"),
    ("tokens/s", "right"),
    ("this machine's limit", "right"),
    ("share", "right"),
)
_FACTS = (("", "left"), ("", "left"))


def _row(title: str, rates: list[float], limits: list[float | None]) -> tuple[str, ...]:
    """Return the cells of the table; the highest limit counts, as it is one for every round."""
    speed = statistics.median(rates)
    limit = max((limit for limit in limits if limit), default=0.0)
    if limit < speed:  # no limit, or a probe that was slower than the model
        return title, _readable(speed), "unknown", ""
    return title, _readable(speed), _readable(limit), f"{100 * speed / limit:.0f} %"


def report_bench(console: Console, model: Model, positions: int) -> None:
    """Write the speed of a model to standard output, beside the limits of the machine.

    A prompt is limited by multiply-adds, a single token by reading the weights and its part of the
    cache. Both limits are measured in turn with the model, over the same mapped weights.

    Args:
        console: The streams of this run.
        model: The loaded model.
        positions: Of the key/value cache; the prompt is shorter where they are few.

    Raises:
        UsageError: There is no room for a prompt and a token.
        NotEnoughMemoryError: The cache does not fit.
        NumericError: The logits are no numbers.
    """
    if positions < 2:
        raise UsageError(f"--context-length: expected at least 2 for --bench, got {positions}")
    steps = min(STEPS, positions // 2)
    prompt = min(PROMPT_TOKENS, positions - steps)
    console.note(
        f"measuring a prompt of {prompt} and {steps} tokens after it, up to {ROUNDS} times"
    )
    runner = _Runner(model, positions)
    rows = _measure(runner, prompt, steps)
    console.report_heading(model.description)
    console.report_line()
    console.report_table(_SPEEDS, rows)
    console.report_line()
    console.report_table(_FACTS, runner.facts(prompt, steps))


def weights_of_a_step(model: Model) -> list[ml.Tensor]:
    """Return the tensors that every token reads as a whole: all but an untied embedding table.

    Of quantized ones, the parts.
    """
    tied = "output.weight" not in model.tensors
    weights = (
        weight
        for name, weight in model.tensors.items()
        if not is_harmless(name) and (tied or name != "tok_embeddings.weight")
    )
    parts = ((w,) if isinstance(w, ml.Tensor) else w.parts() for w in weights)
    return [part for weight in parts for part in weight]


def operations(args: ModelArgs, position: int, rows: int) -> float:
    """Count the multiplications and additions that tokens take, with logits after the last.

    rows * 2 * (matrices of all layers) + 2 * D * V + attention
    """
    D, F, h = args.dim, args.ffn_dim, args.head_dim
    matrices = 2 * D * args.n_heads * h + 2 * D * args.n_kv_heads * h + 3 * D * F
    linear = 2.0 * rows * matrices * args.n_layers + 2.0 * D * args.vocab_size
    return linear + attention_operations(args, position, rows)


def attention_operations(args: ModelArgs, position: int, rows: int) -> float:
    """Count those of attention alone: 4 * H * h * L * (positions that all rows see together)."""
    seen = rows * position + rows * (rows + 1) // 2
    return 4.0 * args.n_heads * args.head_dim * args.n_layers * seen


class _Runner:
    """A model with a cache, and the probes of the machine over the model's weights."""

    def __init__(self, model: Model, positions: int) -> None:
        self._model = model
        self._context = InferenceContext(model.args, positions)
        self._weights = weights_of_a_step(model)
        self.weight_bytes = sum(tensor.nbytes for tensor in self._weights)
        self.run(1)  # whatever lies on disk only is read now
        self._isa, self._streams = roofline.fastest_reading(self._weights)
        self.read_rates: list[float] = []
        self.multiply_rates: list[float] = []

    def run(self, prompt: int, steps: int = 0) -> tuple[float, list[float]]:
        """Run a prompt from an empty cache and single tokens after it; return the seconds."""
        self._context.clear()
        ids = [token % self._model.args.vocab_size for token in range(prompt + steps)]
        reading = self._time(ids[:prompt])
        return reading, [self._time([token]) for token in ids[prompt:]]

    def _time(self, ids: Sequence[int]) -> float:
        start = time.perf_counter()
        position = self._context.length
        logits = self._model.transformer.forward(self._context, ids, position)
        seconds = time.perf_counter() - start
        if not np.isfinite(logits.numpy()).all():
            raise NumericError(f"[bench] logits at position {position} must be numbers: got nan")
        return seconds

    def read_limit(self, position: int) -> float:
        """Return the tokens per second at which all that a token reads can be read."""
        rate = roofline.read_rate(self._weights, self._isa, self._streams)
        self.read_rates.append(rate)
        return rate / (self.weight_bytes + kv_cache_bytes(self._model.args, position))

    def multiply_limit(self, prompt: int) -> float | None:
        """Return the tokens per second at which a prompt's products can be added up, if known.

        Weights of eight bits are added up as integers, whose rate is not measured.
        """
        if any(weight.dtype is ml.int8_block for weight in self._model.tensors.values()):
            return None
        rate = roofline.multiply_add_rate(self._model.args.dtype.name)
        if rate is None:
            return None
        self.multiply_rates.append(rate)
        return rate * prompt / operations(self._model.args, 0, prompt)

    def facts(self, prompt: int, steps: int) -> list[tuple[str, str]]:
        """Return what the limits follow from."""
        info = ml.build_info()
        cache = kv_cache_bytes(self._model.args, prompt)
        peak = f"{_median(self.multiply_rates, 'GFLOPS')}, {info['isa']}"
        return [
            ("prompt tokens", str(prompt)),
            ("tokens one after the other", str(steps)),
            ("bytes per token, weights", exact_bytes(self.weight_bytes)),
            ("bytes per token, cache of the prompt", exact_bytes(cache)),
            ("reading the weights", _median(self.read_rates, "GB/s")),
            ("multiply-adds", peak),
            ("threads", str(info["threads"])),
        ]


def _measure(runner: _Runner, prompt: int, steps: int) -> list[tuple[str, ...]]:
    """Measure prompt, tokens and both limits in rounds, within a budget of time."""
    rounds = []
    end = time.perf_counter() + BUDGET_SECONDS
    for _ in range(ROUNDS):
        limits = runner.multiply_limit(prompt), runner.read_limit(prompt)
        seconds, each = runner.run(prompt, steps)
        rounds.append((prompt / seconds, 1 / statistics.median(each), *limits))
        if time.perf_counter() > end:
            break
    reading, decoding, multiply_limits, read_limits = map(list, zip(*rounds, strict=True))
    return [
        _row("prompt", reading, multiply_limits),
        _row("one token after the other", decoding, read_limits),
    ]


def _median(rates: Sequence[float], unit: str) -> str:
    return f"{1e-9 * statistics.median(rates):.1f} {unit}" if rates else "unknown"


def _readable(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.2g}" if rate < 1 else f"{rate:.1f}"
