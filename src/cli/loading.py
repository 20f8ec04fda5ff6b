"""Load and save the model selected on the command line."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.names import is_matrix
from ..choices import ACTIVATIONS, CACHE_TYPES, QUANTIZED_TYPES
from ..inference import ChatTemplate, InferenceEngine, SamplingDefaults
from ..inference.chat_encoding import template_to_write
from ..memory import available_memory, readable_bytes
from ..model import (
    Model,
    Source,
    find_source,
    forecast_memory,
    kv_cache_bytes,
    load_model,
)
from ..tokenizer import Tokenizer
from .answer import one_interrupt
from .arguments import DEFAULT_CONTEXT_LENGTH, Options
from .console import Console, UsageError

if TYPE_CHECKING:
    from ..model import LoadedAdapter


@dataclass(frozen=True, kw_only=True)
class RankedOptions(Options):
    """Options of rank 0, whose functions load a model or adapter on every rank."""

    load_on_ranks: Callable[[Source, int | None, Console], tuple[Model, int]]
    load_adapter_on_ranks: Callable[[Model, Path], "LoadedAdapter"]


def find_named_source(options: Options, console: Console) -> Source:
    """Read the model's configuration; download the model first if necessary."""
    download_if_missing(options, console)
    return find_source(options.model)


def download_if_missing(options: Options, console: Console) -> None:
    """Download the selected model unless it is already on this machine."""
    if isinstance(options.model, str) and not os.path.lexists(options.model):
        from .downloading import download_named  # only names can be downloaded

        download_named(options.model, options, console)


def open_model(options: Options, console: Console) -> Model:
    """Load the selected model for a report."""
    return _load(options, console, find_named_source(options, console), 1)[0]


def open_model_to_run(options: Options, console: Console) -> tuple[Model, int]:
    """Load the model; return it and the number of positions in its cache.

    The number of positions is the requested context length. The default is the model's
    longest context, but at most 4096. A requested length of 0 selects the longest
    context.
    """
    source = find_named_source(options, console)
    requested = options.context_length
    longest = source.args.max_context_length
    if requested == 0:
        requested = longest
    if requested is not None and requested > longest:
        raise UsageError(
            f"--context-length: expected at most the model's {longest}, got {requested}"
        )
    if isinstance(options, RankedOptions):
        return options.load_on_ranks(source, requested, console)
    return _load(options, console, source, requested)


def open_adapter(options: Options, model: Model, path: Path) -> "LoadedAdapter":
    """Load a LoRA adapter for a model, on every rank if there are several."""
    if isinstance(options, RankedOptions):
        return options.load_adapter_on_ranks(model, path)
    from ..model import load_adapter  # only needed for adapters

    return load_adapter(model, path)


def open_adapters(
    options: Options, model: Model, console: Console
) -> "tuple[tuple[LoadedAdapter, float], ...]":
    """Load the adapters of `--lora`, each with its scale."""
    adapters = []
    for path, scale in options.lora:
        adapter = open_adapter(options, model, path)
        adapters.append((adapter, scale))
        console.note(f"adapter {adapter.description}, scale {scale:g}")
    return tuple(adapters)


def open_second_model(
    options: Options, console: Console, model: Model, positions: int, other: Path | str
) -> Model:
    """Load a second model if it fits into memory together with the first one's cache.

    Args:
        options: The command-line options.
        console: The output streams.
        model: The first model.
        positions: The number of positions in the first model's cache.
        other: The path of a model, or a format to which the first model is quantized.
    """
    if other in QUANTIZED_TYPES:
        options = replace(options, quantize=str(other))
    else:
        options = replace(
            options,
            model=other,
            dequantize=False,
            quantize=None,
            activations=None,
            cache_type=None,
            rope_scaling_factor=None,
        )
    source = find_named_source(options, console)
    taken = kv_cache_bytes(model.args, positions)
    longest = source.args.max_context_length
    return _load(options, console, source, min(positions, longest), taken)[0]


def _load(
    options: Options,
    console: Console,
    source: Source,
    positions: int | None,
    taken: int = 0,
) -> tuple[Model, int]:
    """Load a model after checking that its memory and `taken` bytes fit together."""
    arguments = load_arguments(options)
    forecast = forecast_memory(
        source,
        positions,
        DEFAULT_CONTEXT_LENGTH,
        options.quantize,
        options.dequantize,
        arguments["cache_type"],
    )
    if forecast.free is not None:
        forecast = replace(forecast, free=max(forecast.free - taken, 0))
    forecast.check()
    if forecast.warning is not None:
        console.warn(forecast.warning)
    console.show_progress("loading the model")
    try:
        progress = _quantizing_progress(console)
        model = load_model(source, progress=progress, **arguments)
    finally:
        console.clear_progress()
    if options.activations is not None and model.activations is None:
        console.warn(
            f"--activations {options.activations}: no effect, because no product has "
            "quantized weights and bfloat16 activations"
        )
    return model, forecast.positions


def load_arguments(options: Options) -> dict[str, Any]:
    """Return the arguments of `load_model` that the command line selects."""
    return {
        "rope_scaling_factor": options.rope_scaling_factor,
        "dequantize": options.dequantize,
        "quantize": options.quantize,
        "activations": options.activations or ACTIVATIONS[0],
        "cache_type": options.cache_type or CACHE_TYPES[0],
    }


def _quantizing_progress(console: Console) -> Callable[[int, int], None] | None:
    return console.timed_progress("quantizing the weights", "matrices")


def save_model(options: Options, console: Console) -> None:
    """Save the model, quantized or merged with adapters if requested.

    SIGTERM interrupts it like Ctrl-C.
    """
    path = options.model
    kind = options.quantize
    load_options: dict[str, Any] = {
        "rope_scaling_factor": options.rope_scaling_factor,
        "dequantize": options.dequantize,
        "adapters": options.lora,
        "progress": _quantizing_progress(console),
    }
    target = options.save_gguf or options.save_quantized or options.merge_lora
    assert target is not None
    download_if_missing(options, console)
    try:
        with one_interrupt(signal.SIGTERM):
            if options.save_gguf is not None or target.suffix.lower() == ".gguf":
                from ..model.saving_gguf import save_gguf

                source = find_source(path)
                template = template_to_write(source)
                nbytes = save_gguf(
                    path, target, kind, chat_template=template, **load_options
                )
            else:
                from ..model.saving import save_quantized

                nbytes = save_quantized(path, target, kind, **load_options)
    finally:
        console.clear_progress()
    written = f"{readable_bytes(nbytes)} of weights written"
    console.note(f"{target}: {written}{f', {kind}' if kind else ''}")


def loading_line(engine: InferenceEngine, defaults: SamplingDefaults) -> str:
    """Return a line with the model's name, size, format, memory, context and sampling."""
    model = engine.model
    count = engine.model.parameter_count
    nbytes = sum(weight.nbytes for weight in model.tensors.values())
    size = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
    in_layers = Counter(
        str(weight.dtype)
        for key, weight in model.tensors.items()
        if key.startswith("layers.") and is_matrix(key)
    )
    kinds = ", ".join(kind for kind, _ in in_layers.most_common())
    cache = readable_bytes(engine.context.nbytes)
    if model.args.cache_type != CACHE_TYPES[0]:
        cache += f", {model.args.cache_type}"
    if model.activations not in (None, ACTIVATIONS[0]):
        kinds += f" with {model.activations} activations"
    return (
        f"{model.source.name}: {size} parameters, {kinds}, "
        f"{readable_bytes(nbytes)}; context {engine.sequence_length} tokens, "
        f"{cache}"
        f"{f'; {defaults}' if defaults.settings else ''}"
    )


def model_parts(engine: InferenceEngine, chat_format: ChatTemplate | None) -> list[str]:
    """Return the loading decisions: model, chat format if any, cache and free memory."""
    context = engine.context
    free = available_memory()
    chat_formats = (
        []
        if chat_format is None
        else [f"chat format {chat_format.name} by {chat_format.by}"]
    )
    return [
        *engine.model.description.split("; "),
        *chat_formats,
        f"KV cache {readable_bytes(context.nbytes)} for {context.sequence_length} tokens",
        f"{'unknown' if free is None else readable_bytes(free)} free",
    ]


def required_tokenizer(model: Model) -> Tokenizer:
    """Return a model's tokenizer; raise ModelError or TokenizerError if there is none."""
    return model.tokenizer or model.source.required_tokenizer()
