"""What the command line does, and how it ends."""

import dataclasses
import platform
import time
import traceback
import warnings

from .. import __version__, ml, trace
from ..checkpoint import FileMemoryError
from ..inference import (
    ChatFormatError,
    ContextFullError,
    NumericError,
    PromptError,
    SamplingError,
)
from ..memory import NO_MEMORY_TEXT, is_lack_of_memory
from ..ml.kernels import KernelSettingError, exit_on_bus_error
from ..model import NotEnoughMemoryError, SaveError
from .arguments import EXAMPLES, Options, example_lines
from .console import Console, OutputError
from .errors import DifferenceError, UsageError
from .loading import open_model, open_model_to_run, open_session, save_model
from .one_shot import answer_file, find_prompt, standard_input_is_terminal
from .session import Session

DONE, FAULT, USAGE, BAD_MODEL, NO_MEMORY, NUMERIC = range(6)

# The first class that an error belongs to decides; every other error of ours is a bad model.
_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (UsageError, USAGE),
    (PromptError, USAGE),
    (ContextFullError, USAGE),
    (SamplingError, USAGE),
    (ChatFormatError, USAGE),
    (SaveError, USAGE),
    (DifferenceError, FAULT),
    (KernelSettingError, USAGE),  # an instruction set or a number of threads
    (NotEnoughMemoryError, NO_MEMORY),
    (FileMemoryError, NO_MEMORY),
    (ml.TensorMemoryError, NO_MEMORY),
    (NumericError, NUMERIC),
    (ml.LlamaBoltsError, BAD_MODEL),
)


def run(options: Options) -> int:
    """Do what the command line asks for.

    An error is one line on standard error; a traceback follows only with `--verbose`. Ctrl-C is
    left to the caller.

    Args:
        options: The parsed command line.

    Returns:
        The exit code; see `main`.
    """
    exit_on_bus_error()
    console = Console(quiet=options.quiet, verbose=options.verbose)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: console.warn(str(message))
        try:
            return _run_and_report(options, console)
        finally:
            trace.stop()


def _run_and_report(options: Options, console: Console) -> int:
    start = time.perf_counter()
    try:
        _set_threads(options, console)
        _dispatch(options, console)
        console.detail(f"{time.perf_counter() - start:.2f} s for the whole run")
        return DONE
    except OutputError as error:
        if error.closed:
            return DONE  # the reader has what it wanted, as with `| head`
        console.error(str(error))
        return FAULT
    except Exception as error:  # noqa: BLE001 - the last place that can turn a fault into one line
        code = exit_code(error)
        console.error(_error_text(error, code))
        if console.verbose:
            console.reply(traceback.format_exc())
        return code


def _set_threads(options: Options, console: Console) -> None:
    """Set the threads of the command line, and say what runs the kernels."""
    if options.threads is not None:
        ml.set_num_threads(options.threads)
    kernels = ml.build_info()
    isa, threads, openmp = kernels["isa"], kernels["threads"], kernels["openmp"]
    if options.threads is not None and options.threads > threads:
        reason = "the system or the library gives no more" if openmp else "built without OpenMP"
        console.warn(f"--threads {options.threads}: the kernels use {threads}: {reason}")
    console.detail(
        f"llama-bolts {__version__}, Python {platform.python_version()}; kernels for {isa} by "
        f"{kernels['compiler']}, {'' if openmp else 'no '}OpenMP, {threads} threads"
    )


def exit_code(error: Exception) -> int:
    """Return the exit code that an error ends the process with."""
    if is_lack_of_memory(error):
        return NO_MEMORY
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAULT)


def _error_text(error: Exception, code: int) -> str:
    if code == FAULT and not isinstance(error, DifferenceError):
        return f"internal fault: {error!r} (--verbose shows where)"
    if isinstance(error, ContextFullError):
        return (
            f"the prompt does not fit: it takes {error.tokens} tokens, and the context has "
            f"{error.positions}; a larger --context-length makes room, as far as the model goes"
        )
    if isinstance(error, ImportError):
        return f"{NO_MEMORY_TEXT} for a library: {error}"
    return str(error) or NO_MEMORY_TEXT  # a MemoryError of Python has no text


def _dispatch(options: Options, console: Console) -> None:
    """Call what the command line names; a branch imports what the others do not need."""
    if options.metadata or options.check_weights or options.info or options.explain is not None:
        from . import reports

        if options.info:
            reports.report_info(console)
        elif options.explain is not None:
            reports.report_stage(console, options.explain)
        elif options.check_weights:
            reports.check_weights(options, console)
        else:
            reports.report_metadata(console, open_model(options, console))
    elif options.verify:
        from .verify import report_verify

        report_verify(options, console)
    elif options.save_quantized is not None:
        save_model(options, console)
    elif options.bench:
        from .bench import report_bench

        report_bench(console, *open_model_to_run(options, console))
    elif options.jsonl is not None:
        answer_file(options, console)
    elif options.examples and not standard_input_is_terminal():
        for line in example_lines():
            console.report_line(line)
    else:
        _answer_or_chat(_with_example(options), console)


def _answer_or_chat(options: Options, console: Console) -> None:
    prompt = find_prompt(options, console)
    session = open_session(options, console)
    for flag in ("diagrams", "explore"):
        if prompt is None and getattr(options, flag) is not None:
            raise UsageError(f"--{flag}: expected a prompt (-p, -f or standard input), got none")
    if prompt is None:
        from .chat import chat

        chat(session, shows_examples=options.examples)
    elif options.explore is not None:
        from .explore import explored

        with explored(session, options):
            _answer(session, prompt, options)
    else:
        _answer(session, prompt, options)


def _answer(session: Session, prompt: str, options: Options) -> None:
    if options.diagrams is not None:
        from .diagrams import answer_and_draw

        answer_and_draw(session, prompt, options.diagrams)
    elif not session.ask(prompt).is_complete:
        raise KeyboardInterrupt


def _with_example(options: Options) -> Options:
    """Return the options with the prompt of `--example` in its place."""
    if options.example is None:
        return options
    example = EXAMPLES[options.example - 1]
    return dataclasses.replace(
        options, prompt=example.prompt, system=example.system, completion=example.completion
    )
