"""Opening the model that the command line names."""

from .. import ml
from ..inference import FoundFormat, InferenceEngine, Message, encode_chat
from ..model import Model, available_memory, load_model, missing_tokenizer, readable_bytes
from ..tokenizer import Tokenizer
from .arguments import DEFAULT_CONTEXT_LENGTH, Options
from .console import Console
from .errors import UsageError
from .session import Session
from .settings import Settings
from .tracing import TraceSwitch


def open_model(options: Options) -> Model:
    """Load the model of the command line, on as many threads as it says.

    Raises:
        ModelError, CheckpointError, TokenizerError: its files cannot be used.
    """
    if options.threads is not None:
        ml.set_num_threads(options.threads)
    return load_model(options.model, rope_scaling_factor=options.rope_scaling_factor)


def open_session(options: Options, console: Console) -> Session:
    """Make everything that a prompt needs, and say in a line what was loaded.

    Raises:
        SamplingError, UsageError: a setting is out of its range, before anything is loaded; or a
            file of the trace cannot be written.
        ModelError, CheckpointError, TokenizerError: the model's files cannot be used.
        ChatFormatError: the chat format is not known, or is not one for the model's tokenizer.
        NotEnoughMemoryError: the key/value cache does not fit.
    """
    settings = Settings.from_options(options)
    model = open_model(options)
    tokenizer = _required_tokenizer(model)
    engine = InferenceEngine(model, context_length(options, model))
    chat_format = _chat_format(options, engine, tokenizer)
    console.note(loading_line(engine, chat_format))
    trace = TraceSwitch(options, console, model.args.sizes)
    if options.debug_log is not None or options.trace_json is not None:
        trace.turn_on()
    return Session(
        engine,
        tokenizer,
        console,
        settings,
        trace,
        system=options.system,
        completion=options.completion,
        chat_format=chat_format,
        statistics=options.statistics,
    )


def context_length(options: Options, model: Model) -> int:
    """Return the positions of the key/value cache: as asked for, or min(4096, the model's).

    Raises:
        UsageError: more are asked for than the model has.
    """
    longest = model.args.max_context_length
    if options.context_length is None:
        return min(DEFAULT_CONTEXT_LENGTH, longest)
    if options.context_length > longest:
        raise UsageError(
            f"--context-length: expected at most the model's {longest}, "
            f"got {options.context_length}"
        )
    return options.context_length


def loading_line(engine: InferenceEngine, chat_format: FoundFormat | None = None) -> str:
    """Return one line: the model, its size, its decisions, the cache and the free memory.

    Args:
        engine: the engine with its model.
        chat_format: the format of the chat; None where there is none.
    """
    context = engine.context
    free = available_memory()
    parts = [
        engine.model.description,
        f"KV cache {readable_bytes(context.nbytes)} for {context.sequence_length} tokens",
        f"{'unknown' if free is None else readable_bytes(free)} free",
    ]
    if chat_format is not None:
        parts.insert(1, f"chat format {chat_format.name} by {chat_format.by}")
    return "; ".join(parts)


def _chat_format(
    options: Options, engine: InferenceEngine, tokenizer: Tokenizer
) -> FoundFormat | None:
    """Return the chat format of this run, once a message was written in it; None for no chat.

    The menu of examples holds completions too, so there a format is looked for when it is needed.
    """
    if options.chat_format is not None:
        found = FoundFormat(options.chat_format, "--chat-format")
    elif options.completion or options.examples:
        return None
    else:
        found = engine.chat_format
    encode_chat(tokenizer, [Message("user", "")], chat_format=found.name)
    return found


def _required_tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise missing_tokenizer(model.source_directory)
    return model.tokenizer
