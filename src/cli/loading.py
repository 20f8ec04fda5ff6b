"""Opening the model that the command line names."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from ..checkpoint.model_directory import listing_of
from ..checkpoint.names import is_matrix
from ..inference import FoundFormat, InferenceEngine, Message, encode_chat
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
from ..model.files import BUNDLED_MODEL
from ..tokenizer import Tokenizer
from ..untrusted import label_of
from .answer import Settings
from .arguments import DEFAULT_CONTEXT_LENGTH, Options
from .console import Console, UsageError
from .session import Session
from .tracing import TraceSwitch

QUANTIZING = ("quantizing the weights", "matrices")


def open_model(options: Options, console: Console) -> Model:
    """Load the model of the command line, on as many threads as it says, to be looked at.

    Raises:
        NotEnoughMemoryError: The model has to be copied, and does not fit.
        ModelError, CheckpointError, TokenizerError: Its files cannot be used.
    """
    return _load(options, console, read_model_files(options.model), 1)[0]


def open_model_to_run(options: Options, console: Console) -> tuple[Model, int]:
    """Load the model of the command line, and tell the positions of its key/value cache.

    They are as many as asked for, or min(4096, the model's).

    Raises:
        UsageError: More positions are asked for than the model has.
        NotEnoughMemoryError: Model and cache do not fit.
        ModelError, CheckpointError, TokenizerError: The model's files cannot be used.
    """
    files, asked = read_model_files(options.model), options.context_length
    longest = files.args.max_context_length
    if asked is not None and asked > longest:
        raise UsageError(f"--context-length: expected at most the model's {longest}, got {asked}")
    return _load(options, console, files, asked)


def _load(
    options: Options, console: Console, files: ModelFiles, positions: int | None
) -> tuple[Model, int]:
    """Load a model unless it cannot fit, which is said before any of its weights is mapped."""
    forecast = forecast_memory(files, positions, DEFAULT_CONTEXT_LENGTH, options.quantize)
    forecast.check()
    if forecast.warning is not None:
        console.warn(forecast.warning)
    console.show_progress("loading the model")
    try:
        model = load_model(
            files,
            rope_scaling_factor=options.rope_scaling_factor,
            quantize=options.quantize,
            progress=console.timed_progress(*QUANTIZING),
        )
    finally:
        console.clear_progress()
    return model, forecast.positions


def save_model(options: Options, console: Console) -> None:
    """Quantize the model of the command line into a new directory, and say so in a line.

    SIGTERM ends it as Ctrl-C does: what was written is removed first.

    Raises:
        SaveError: The directory is there already, or cannot be written.
        ModelError, CheckpointError, TokenizerError: The model's files cannot be used.
    """
    from ..model.saving import save_quantized

    target = options.save_quantized
    assert target is not None
    assert options.quantize is not None
    try:
        with _exit_on_sigterm():
            nbytes = save_quantized(
                options.model,
                target,
                options.quantize,
                rope_scaling_factor=options.rope_scaling_factor,
                progress=console.timed_progress(*QUANTIZING),
            )
    finally:
        console.clear_progress()
    console.note(f"{target}: {readable_bytes(nbytes)} of weights written, {options.quantize}")


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn the first SIGTERM into SystemExit, with the exit code that shells report for it."""

    def leave(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def open_session(options: Options, console: Console) -> Session:
    """Make everything that a prompt needs, and say in a line what was loaded.

    Raises:
        SamplingError, UsageError: A setting is out of its range, before anything is loaded; or a
            file of the trace cannot be written.
        ModelError, CheckpointError, TokenizerError: The model's files cannot be used.
        ChatFormatError: The chat format is not known, or is not one for the model's tokenizer.
        NotEnoughMemoryError: Model and key/value cache do not fit.
    """
    settings = Settings.from_options(options)
    model, positions = open_model_to_run(options, console)
    tokenizer = _required_tokenizer(model)
    engine = InferenceEngine(
        model, positions, draft_model=_open_draft_model(options, console, model, positions)
    )
    chat_format = _chat_format(options, engine, tokenizer)
    console.note(loading_line(engine))
    console.detail("; ".join(model_parts(engine, chat_format)))
    trace = TraceSwitch(options, console, engine, chat_format)
    if options.debug_log is not None or options.trace_json is not None:
        trace.turn_on()
    return Session(options, engine, tokenizer, console, settings, trace, chat_format)


def _open_draft_model(
    options: Options, console: Console, model: Model, positions: int
) -> Model | None:
    """Load the model that guesses tokens, if there is one and it fits beside the other."""
    if options.draft_model is None:
        return None
    files = read_model_files(options.draft_model)
    forecast = forecast_memory(files, None, positions)
    if forecast.free is not None:
        beside = kv_cache_bytes(model.args, positions)
        forecast = replace(forecast, free=max(forecast.free - beside, 0))
    forecast.check()
    draft_model = load_model(files)
    console.detail(f"draft model: {draft_model.description}")
    return draft_model


def is_bundled(model: Model) -> bool:
    """Return whether a model is the one that comes with the package."""
    return model.files.top.resolve() == BUNDLED_MODEL


def loading_line(engine: InferenceEngine) -> str:
    """Return one line for a person who chats: name, size, format, memory and context.

    `/show model` and `--verbose` tell the rest.
    """
    model, count = engine.model, engine.model.parameter_count
    top = model.files.top
    # A link to a GGUF file has a name that says more than that of its target.
    named = top if top.is_file() else top.resolve()
    name = "bundled model" if is_bundled(model) else named.name
    nbytes = sum(weight.nbytes for weight in model.tensors.values())
    size = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
    matrices = {key: w for key, w in model.tensors.items() if is_matrix(key)}
    in_layers = Counter(w.dtype for key, w in matrices.items() if key.startswith("layers."))
    kinds = ", ".join(str(dtype) for dtype, _ in in_layers.most_common())
    return (
        f"{name}: {size} parameters, {kinds}, {readable_bytes(nbytes)}; "
        f"context {engine.sequence_length} tokens, {readable_bytes(engine.context.nbytes)}"
    )


def model_parts(engine: InferenceEngine, chat_format: FoundFormat | None) -> list[str]:
    """Return all that was found and decided on loading: model, chat format, cache, free memory.

    Args:
        engine: The engine with its model.
        chat_format: The format of the chat; None where there is none.
    """
    context, free = engine.context, available_memory()
    parts = engine.model.description.split("; ")
    if chat_format is not None:
        parts.append(f"chat format {chat_format.name} by {chat_format.by}")
    return [
        *parts,
        f"KV cache {readable_bytes(context.nbytes)} for {context.sequence_length} tokens",
        f"{'unknown' if free is None else readable_bytes(free)} free",
    ]


def _chat_format(
    options: Options, engine: InferenceEngine, tokenizer: Tokenizer
) -> FoundFormat | None:
    """Return the chat format of this run, once a message was written in it; None for no chat.

    The examples hold a completion too, so with them a format is looked for when it is needed.
    """
    if options.chat_format is not None:
        found = FoundFormat(options.chat_format, "--chat-format")
    elif options.completion or options.examples:
        return None
    else:
        found = engine.chat_format
    message, think = Message("user", ""), options.think != "off"
    encode_chat(tokenizer, [message], chat_format=found.name, think=think)
    return found


def _required_tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None and model.files.directory.layout == "GGUF":
        text = "tokenizer: expected the keys tokenizer.ggml.model and on, got none"
        raise ModelError(f"{label_of(model.source_directory)}: {text}")
    if model.tokenizer is None:
        raise ModelError(
            f"{label_of(model.source_directory)}: tokenizer: expected tokenizer.model for Meta's "
            "layout (base64 ranks for Llama 3, SentencePiece for Llama 2) or tokenizer.json or "
            "tokenizer.model (SentencePiece) for Hugging Face's, got "
            f"{listing_of(model.source_directory)}"
        )
    return model.tokenizer
