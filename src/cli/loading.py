"""Opening the model that the command line names."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.names import is_matrix
from ..inference import (
    CHAT_FORMATS,
    ChatTemplate,
    GrammarError,
    InferenceEngine,
    Message,
    SamplingDefaults,
    encode_chat,
    end_ids,
    find_chat_template,
    named_template,
    sampling_defaults,
)
from ..inference.chat_encoding import template_to_write
from ..inference.chat_template import LONGEST_TEMPLATE
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
from ..untrusted import check_writable, label_of, read_whole
from .answer import Settings, one_interrupt
from .arguments import DEFAULT_CONTEXT_LENGTH, QUANTIZATION_NAMES, Options
from .console import Console, UsageError
from .session import Session

if TYPE_CHECKING:
    from ..inference.grammars import Grammar


@dataclass(frozen=True, kw_only=True)
class RankedOptions(Options):
    """The command line of the first of several processes; `load_on_ranks` loads on all of them."""

    load_on_ranks: Callable[[Source, int | None, Console], tuple[Model, int]]


def find_named_source(options: Options, console: Console) -> Source:
    """Read the small files of the model of the command line; a name may download it first."""
    download_if_missing(options, console)
    return find_source(options.model)


def download_if_missing(options: Options, console: Console) -> None:
    """Download the model that the command line names, if it is not on this machine."""
    if isinstance(options.model, str) and not os.path.lexists(options.model):
        from .downloading import download_named  # of names alone

        download_named(options.model, options, console)


def open_model(options: Options, console: Console) -> Model:
    """Load the model of the command line to be looked at."""
    return _load(options, console, find_named_source(options, console), 1)[0]


def open_model_to_run(options: Options, console: Console) -> tuple[Model, int]:
    """Load the model, with the positions of its cache: as asked for, or min(4096, the model's).

    A context length of 0 asks for the model's longest context.
    """
    source, asked = find_named_source(options, console), options.context_length
    longest = source.args.max_context_length
    if asked == 0:
        asked = longest
    if asked is not None and asked > longest:
        raise UsageError(f"--context-length: expected at most the model's {longest}, got {asked}")
    if isinstance(options, RankedOptions):
        return options.load_on_ranks(source, asked, console)
    return _load(options, console, source, asked)


def open_beside(
    options: Options, console: Console, model: Model, positions: int, other: Path | str
) -> Model:
    """Load the model of a path, or the same one in a format, if it fits beside a model's cache."""
    if other in QUANTIZATION_NAMES:
        options = replace(options, quantize=str(other))
    else:
        options = replace(
            options, model=other, dequantize=False, quantize=None, rope_scaling_factor=None
        )
    source, taken = find_named_source(options, console), kv_cache_bytes(model.args, positions)
    longest = source.args.max_context_length
    return _load(options, console, source, min(positions, longest), taken)[0]


def _load(
    options: Options, console: Console, source: Source, positions: int | None, taken: int = 0
) -> tuple[Model, int]:
    """Load a model if it fits beside `taken` bytes, which is known before any weight is mapped."""
    forecast = forecast_memory(
        source, positions, DEFAULT_CONTEXT_LENGTH, options.quantize, options.dequantize
    )
    if forecast.free is not None:
        forecast = replace(forecast, free=max(forecast.free - taken, 0))
    forecast.check()
    if forecast.warning is not None:
        console.warn(forecast.warning)
    console.show_progress("loading the model")
    try:
        model = load_model(source, quantize=options.quantize, **_how(options, console))
    finally:
        console.clear_progress()
    return model, forecast.positions


def _how(options: Options, console: Console) -> dict[str, Any]:
    """Return what loading and saving take alike."""
    progress = console.timed_progress("quantizing the weights", "matrices")
    return {
        "rope_scaling_factor": options.rope_scaling_factor,
        "dequantize": options.dequantize,
        "progress": progress,
    }


def save_model(options: Options, console: Console) -> None:
    """Write the model of the command line, perhaps quantized; SIGTERM ends it as Ctrl-C does."""
    path, kind, how = options.model, options.quantize, _how(options, console)
    target = options.save_gguf or options.save_quantized
    assert target is not None
    download_if_missing(options, console)
    try:
        with one_interrupt(signal.SIGTERM):
            if options.save_gguf is not None:
                from ..model.saving_gguf import save_gguf

                source = find_source(path)
                template = template_to_write(source)
                nbytes = save_gguf(path, target, kind, chat_template=template, **how)
            else:
                from ..model.saving import save_quantized

                nbytes = save_quantized(path, target, kind, **how)
    finally:
        console.clear_progress()
    written = f"{readable_bytes(nbytes)} of weights written"
    console.note(f"{target}: {written}{f', {kind}' if kind else ''}")


def open_session(options: Options, console: Console) -> Session:
    """Make all that a prompt needs; settings and grammar are checked before anything is loaded."""
    Settings.from_options(options)
    grammar = _read_grammar(options)
    model, positions = open_model_to_run(options, console)
    tokenizer = required_tokenizer(model)
    draft_model = None
    if options.draft_model is not None:
        draft_model = open_beside(options, console, model, positions, options.draft_model)
        console.detail(f"draft model: {draft_model.description}")
    engine = InferenceEngine(model, positions, draft_model=draft_model)
    # The examples hold a completion too, so with them a format is looked for when it is needed.
    is_named = options.chat_format is not None or options.chat_template is not None
    is_chat = is_named or not (options.completion or options.examples)
    chat_format = chat_format_of(options, model) if is_chat else None
    defaults = sampling_defaults_of(options, model)
    settings = Settings.from_options(options, defaults.settings)
    console.note(loading_line(engine, defaults))
    console.detail("; ".join(model_parts(engine, chat_format)))
    new_mask = None
    if grammar is not None:
        from ..inference.grammars import Grammars

        of_format = () if chat_format is None else end_ids(tokenizer, chat_format)
        grammars = Grammars(tokenizer, model.stop_ids.union(of_format))
        grammars.start()
        new_mask = partial(grammars.mask, grammar)
    return Session(options, engine, tokenizer, console, settings, chat_format, new_mask)


def _read_grammar(options: Options) -> "Grammar | None":
    """Read what answers have to follow, or return None for any answer."""
    source = options.json_schema or options.grammar
    if source is None:
        return None
    from ..inference.grammars import MOST_BYTES, Grammar, read_grammar
    from .saved_chat import read_text

    text = source if isinstance(source, str) else read_text(source, MOST_BYTES)
    try:
        if options.json_schema is not None:
            return Grammar("json_schema", text)
        return read_grammar(text)
    except GrammarError as error:
        where = "--json-schema" if isinstance(source, str) else label_of(source)
        raise UsageError(f"{where}: {error}") from None


@contextmanager
def prompt_cached(engine: InferenceEngine, path: Path) -> Iterator[None]:
    """Let an engine begin with what a file holds, and write to it what is cached at the end."""
    from ..inference import load_prompt_cache, save_prompt_cache

    check_writable(path, UsageError)
    if os.path.lexists(path):
        load_prompt_cache(engine, path)
    try:
        yield
    finally:
        save_prompt_cache(engine, path)


def sampling_defaults_of(options: Options, model: Model) -> SamplingDefaults:
    """Return the model's defaults of sampling, as far as the command line leaves them in effect."""
    if options.sampling_defaults == "engine":
        return SamplingDefaults()
    found = sampling_defaults(model.source)
    settings = {n: value for n, value in found.settings.items() if getattr(options, n) is None}
    return SamplingDefaults(settings, found.by)


def loading_line(engine: InferenceEngine, defaults: SamplingDefaults) -> str:
    """Return one line for a person who chats: name, size, format, memory, context, sampling."""
    model, count = engine.model, engine.model.parameter_count
    nbytes = sum(weight.nbytes for weight in model.tensors.values())
    size = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
    in_layers = Counter(
        str(weight.dtype)
        for key, weight in model.tensors.items()
        if key.startswith("layers.") and is_matrix(key)
    )
    kinds = ", ".join(kind for kind, _ in in_layers.most_common())
    return (
        f"{model.source.name}: {size} parameters, {kinds}, "
        f"{readable_bytes(nbytes)}; context {engine.sequence_length} tokens, "
        f"{readable_bytes(engine.context.nbytes)}"
        f"{f'; {defaults}' if defaults.settings else ''}"
    )


def model_parts(engine: InferenceEngine, chat_format: ChatTemplate | None) -> list[str]:
    """Return all that was decided on loading: model, chat format or None, cache, free memory."""
    context, free = engine.context, available_memory()
    found = [] if chat_format is None else [f"chat format {chat_format.name} by {chat_format.by}"]
    return [
        *engine.model.description.split("; "),
        *found,
        f"KV cache {readable_bytes(context.nbytes)} for {context.sequence_length} tokens",
        f"{'unknown' if free is None else readable_bytes(free)} free",
    ]


def chat_format_of(options: Options, model: Model) -> ChatTemplate:
    """Return the chat template that is named or found, once a message was written with it."""
    tokenizer = required_tokenizer(model)
    template = template_named(options) or find_chat_template(model.source, tokenizer)
    template = template.with_arguments(dict(options.template_arg))
    question = Message("user", "")
    encode_chat(tokenizer, [question], chat_format=template, think=options.think != "off")
    return template


def template_named(options: Options) -> ChatTemplate | None:
    """Return the chat template that the command line names, or None for that of the model."""
    value = options.chat_template
    if value is None:
        name = options.chat_format
        return None if name is None else named_template(name, "--chat-format")
    if value in CHAT_FORMATS:
        return named_template(value, "--chat-template")
    path = Path(value)
    if not os.path.exists(path):
        known = ", ".join(CHAT_FORMATS)
        raise UsageError(
            f"--chat-template: expected a file or one of {known}, got {label_of(path)}"
        )
    data = read_whole(path, LONGEST_TEMPLATE, UsageError)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        label = label_of(path)
        raise UsageError(
            f"{label}: text: expected UTF-8, got other bytes at byte {error.start}"
        ) from None
    return ChatTemplate(text, name=label_of(Path(path.name)), by="--chat-template")


def required_tokenizer(model: Model) -> Tokenizer:
    """Return the tokenizer of a model; raise ModelError or TokenizerError where it has none."""
    return model.tokenizer or model.source.required_tokenizer()
