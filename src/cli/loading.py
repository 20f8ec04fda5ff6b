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
    FoundFormat,
    GrammarError,
    InferenceEngine,
    Message,
    encode_chat,
    end_ids,
    find_chat_format,
)
from ..inference.chat_encoding import template_to_write
from ..memory import available_memory, readable_bytes
from ..model import (
    Model,
    ModelError,
    ModelFiles,
    forecast_memory,
    kv_cache_bytes,
    load_model,
    read_model_files,
)
from ..model.loader import find_tokenizer
from ..tokenizer import Tokenizer, load_tokenizer
from ..untrusted import label_of
from .answer import Settings, one_interrupt
from .arguments import DEFAULT_CONTEXT_LENGTH, QUANTIZATION_NAMES, Options
from .console import Console, UsageError
from .session import Session

if TYPE_CHECKING:
    from ..inference.grammars import Grammar


@dataclass(frozen=True, kw_only=True)
class RankedOptions(Options):
    """The command line of the first of several processes; `load_on_ranks` loads on all of them."""

    load_on_ranks: Callable[[ModelFiles, int | None, Console], tuple[Model, int]]


def open_model(options: Options, console: Console) -> Model:
    """Load the model of the command line to be looked at."""
    return _load(options, console, read_model_files(options.model), 1)[0]


def open_model_to_run(options: Options, console: Console) -> tuple[Model, int]:
    """Load the model, with the positions of its cache: as asked for, or min(4096, the model's)."""
    files, asked = read_model_files(options.model), options.context_length
    longest = files.args.max_context_length
    if asked is not None and asked > longest:
        raise UsageError(f"--context-length: expected at most the model's {longest}, got {asked}")
    if isinstance(options, RankedOptions):
        return options.load_on_ranks(files, asked, console)
    return _load(options, console, files, asked)


def open_beside(
    options: Options, console: Console, model: Model, positions: int, other: Path | str
) -> Model:
    """Load the model of a path, or the same one in a format, if it fits beside a model's cache."""
    if other in QUANTIZATION_NAMES:
        options = replace(options, quantize=str(other))
    else:
        options = replace(options, model=Path(other), quantize=None, rope_scaling_factor=None)
    files, taken = read_model_files(options.model), kv_cache_bytes(model.args, positions)
    return _load(options, console, files, min(positions, files.args.max_context_length), taken)[0]


def _load(
    options: Options, console: Console, files: ModelFiles, positions: int | None, taken: int = 0
) -> tuple[Model, int]:
    """Load a model if it fits beside `taken` bytes, which is known before any weight is mapped."""
    forecast = forecast_memory(files, positions, DEFAULT_CONTEXT_LENGTH, options.quantize)
    if forecast.free is not None:
        forecast = replace(forecast, free=max(forecast.free - taken, 0))
    forecast.check()
    if forecast.warning is not None:
        console.warn(forecast.warning)
    console.show_progress("loading the model")
    try:
        model = load_model(files, quantize=options.quantize, **_how(options, console))
    finally:
        console.clear_progress()
    return model, forecast.positions


def _how(options: Options, console: Console) -> dict[str, Any]:
    """Return what loading and saving take alike."""
    progress = console.timed_progress("quantizing the weights", "matrices")
    return {"rope_scaling_factor": options.rope_scaling_factor, "progress": progress}


def save_model(options: Options, console: Console) -> None:
    """Write the model of the command line, perhaps quantized; SIGTERM ends it as Ctrl-C does."""
    path, kind, how = options.model, options.quantize, _how(options, console)
    target = options.save_gguf or options.save_quantized
    assert target is not None
    try:
        with one_interrupt(signal.SIGTERM):
            if options.save_gguf is not None:
                from ..model.saving_gguf import save_gguf

                files = read_model_files(path)
                template = template_to_write(files.directory.path, find_tokenizer(files))
                nbytes = save_gguf(path, target, kind, chat_template=template, **how)
            else:
                from ..model.saving import save_quantized

                assert kind is not None
                nbytes = save_quantized(path, target, kind, **how)
    finally:
        console.clear_progress()
    written = f"{readable_bytes(nbytes)} of weights written"
    console.note(f"{target}: {written}{f', {kind}' if kind else ''}")


def open_session(options: Options, console: Console) -> Session:
    """Make all that a prompt needs; settings and grammar are checked before anything is loaded."""
    settings = Settings.from_options(options)
    grammar = _read_grammar(options)
    model, positions = open_model_to_run(options, console)
    tokenizer = required_tokenizer(model)
    draft_model = None
    if options.draft_model is not None:
        draft_model = open_beside(options, console, model, positions, options.draft_model)
        console.detail(f"draft model: {draft_model.description}")
    engine = InferenceEngine(model, positions, draft_model=draft_model)
    # The examples hold a completion too, so with them a format is looked for when it is needed.
    is_chat = options.chat_format is not None or not (options.completion or options.examples)
    chat_format = chat_format_of(options, model) if is_chat else None
    console.note(loading_line(engine))
    console.detail("; ".join(model_parts(engine, chat_format)))
    new_mask = None
    if grammar is not None:
        from ..inference.grammars import Grammars

        of_format = () if chat_format is None else end_ids(tokenizer, chat_format.name)
        new_mask = partial(Grammars(tokenizer, model.stop_ids.union(of_format)).mask, grammar)
    return Session(options, engine, tokenizer, console, settings, chat_format, new_mask)


def _read_grammar(options: Options) -> "Grammar | None":
    """Read what answers have to follow, or return None for any answer."""
    path = options.json_schema or options.grammar
    if path is None:
        return None
    from ..inference.grammars import MOST_BYTES, Grammar
    from .saved_chat import read_text

    text = read_text(path, MOST_BYTES)
    try:
        return Grammar("lark" if options.json_schema is None else "json_schema", text)
    except GrammarError as error:
        raise UsageError(f"{label_of(path)}: {error}") from None


@contextmanager
def prompt_cached(engine: InferenceEngine, path: Path) -> Iterator[None]:
    """Let an engine begin with what a file holds, and write to it what is cached at the end."""
    from ..inference import load_prompt_cache, save_prompt_cache

    if os.path.lexists(path):
        load_prompt_cache(engine, path)
    try:
        yield
    finally:
        save_prompt_cache(engine, path)


def loading_line(engine: InferenceEngine) -> str:
    """Return one line for a person who chats: name, size, format, memory and context."""
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
        f"{model.files.name}: {size} parameters, {kinds}, "
        f"{readable_bytes(nbytes)}; context {engine.sequence_length} tokens, "
        f"{readable_bytes(engine.context.nbytes)}"
    )


def model_parts(engine: InferenceEngine, chat_format: FoundFormat | None) -> list[str]:
    """Return all that was decided on loading: model, chat format or None, cache, free memory."""
    context, free = engine.context, available_memory()
    found = [] if chat_format is None else [f"chat format {chat_format.name} by {chat_format.by}"]
    return [
        *engine.model.description.split("; "),
        *found,
        f"KV cache {readable_bytes(context.nbytes)} for {context.sequence_length} tokens",
        f"{'unknown' if free is None else readable_bytes(free)} free",
    ]


def chat_format_of(options: Options, model: Model) -> FoundFormat:
    """Return the chat format that is named or found, once a message was written in it."""
    tokenizer = required_tokenizer(model)
    if options.chat_format is not None:
        found = FoundFormat(options.chat_format, "--chat-format")
    else:
        found = find_chat_format(model.source_directory, tokenizer, model.files.chat_template)
    message, think = Message("user", ""), options.think != "off"
    encode_chat(tokenizer, [message], chat_format=found.name, think=think)
    return found


def required_tokenizer(model: Model) -> Tokenizer:
    """Return the tokenizer of a model; raise ModelError or TokenizerError where it has none."""
    if model.tokenizer is not None:
        return model.tokenizer
    if model.files.directory.layout != "GGUF":
        return load_tokenizer(model.source_directory)  # which says what it expected and found
    rule = "tokenizer: expected the keys tokenizer.ggml.model and on, got none"
    raise ModelError(f"{label_of(model.source_directory)}: {rule}")
