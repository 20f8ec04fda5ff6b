"""The entry point: actions, exit codes, and prompts that are not part of a chat."""

import dataclasses
import fcntl
import os
import platform
import select
import stat
import sys
import termios
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from .. import __version__, ml, trace
from ..checkpoint import CheckpointError, FileMemoryError
from ..inference import (
    ContextFullError,
    InferenceError,
    Message,
    NumericError,
    PromptCacheError,
    as_messages,
)
from ..memory import NO_MEMORY_TEXT, is_lack_of_memory, readable_bytes
from ..ml.errors import KernelSettingError
from ..ml.kernels import exit_on_bus_error, keep_freed_memory
from ..model.errors import NotEnoughMemoryError, SaveError
from ..untrusted import described, label_of, parse_strict_json
from . import mpi_place, mpirun_is_at_terminal
from .arguments import BUNDLED_CHAT_LENGTH, EXAMPLES, Options, example_lines
from .console import Console, DifferenceError, OutputError, UsageError, usage_errors
from .new_session import open_session, prompt_cached
from .session import Session

# Maximum prompt size. It corresponds to about a million tokens of prose, which exceeds
# every context. Counting the tokens would take too long.
MOST_PROMPT_BYTES = 4 << 20
_TOO_LONG = f"expected at most {readable_bytes(MOST_PROMPT_BYTES)}, got more"
_STANDARD_INPUT = Path("-")
_SECONDS_OF_PATIENCE = 1.0
_EXPECTED = 'a text, or an object with "prompt" or "messages" alone'

DONE, FAULT, USAGE, BAD_MODEL, NO_MEMORY, NUMERIC = range(6)

_EXPECTED_FAULTS = (DifferenceError, OutputError)
# Exit codes by exception class. The first matching row determines the code.
_EXIT_CODES: tuple[tuple[int, tuple[type[Exception], ...]], ...] = (
    (FAULT, _EXPECTED_FAULTS),
    (NUMERIC, (NumericError,)),
    (NO_MEMORY, (NotEnoughMemoryError, FileMemoryError, ml.TensorMemoryError)),
    (BAD_MODEL, (PromptCacheError,)),
    (USAGE, (UsageError, InferenceError, SaveError, KernelSettingError)),
    (BAD_MODEL, (ml.LlamaBoltsError,)),
)
# The module and function of each action, by flag.
_ACTIONS = {
    "info": ("reports", "report_info"),
    "explain": ("reports", "report_stage"),
    "exercise": ("exercises", "report_exercise"),
    "list_models": ("model_list", "report_models"),
    "metadata": ("reports", "report_metadata"),
    "verify": ("verify", "report_verify"),
    "bench": ("bench", "report_bench"),
    "perplexity": ("perplexity", "report_perplexity"),
    "make_vector": ("scans", "report_vector"),
    "patch_scan": ("scans", "report_patches"),
    "ablate_scan": ("scans", "report_ablations"),
    "serve": ("serve", "serve_model"),
    "save_quantized": ("loading", "save_model"),
    "save_gguf": ("loading", "save_model"),
    "merge_lora": ("loading", "save_model"),
}


def run(options: Options) -> int:
    """Run the action selected on the command line and return the exit code.

    KeyboardInterrupt is left to the caller.
    """
    exit_on_bus_error()
    keep_freed_memory()
    console = Console(quiet=options.quiet, verbose=options.verbose)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: console.warn(str(message))
        try:
            if mpi_place()[1] == 1:
                return _run_and_report(options, console)
            from .ranks import run_rank

            return run_rank(options, console, _run_and_report, describe_error)
        finally:
            trace.stop()


def _run_and_report(options: Options, console: Console) -> int:
    start = time.perf_counter()
    try:
        _set_threads(options, console)
        _dispatch(options, console)
        console.detail(f"{time.perf_counter() - start:.2f} s for the whole run")
        return DONE
    # All exceptions are caught here, so that each is reported in one line.
    except Exception as error:  # noqa: BLE001
        if isinstance(error, OutputError) and error.closed:
            return DONE  # the reader has finished, as in `| head`
        code, text = describe_error(error)
        console.error(text)
        if console.verbose:
            console.reply(traceback.format_exc())
        return code


def _set_threads(options: Options, console: Console) -> None:
    """Apply `--threads` and print the instruction set of the kernels."""
    if options.threads is not None:
        ml.set_num_threads(options.threads)
    kernels = ml.build_info()
    if (options.threads or 0) > kernels["threads"]:
        console.warn(f"--threads {options.threads}: the kernels use {kernels['threads']}")
    console.detail(
        f"llama-bolts {__version__}, Python {platform.python_version()}; kernels for "
        f"{kernels['isa']} by {kernels['compiler']}, {kernels['threading']}, "
        f"{kernels['threads']} threads"
    )


def describe_error(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message for an error."""
    of_kind = (code for code, kinds in _EXIT_CODES if isinstance(error, kinds))
    code = NO_MEMORY if is_lack_of_memory(error) else next(of_kind, FAULT)
    if code == FAULT and not isinstance(error, _EXPECTED_FAULTS):
        return code, f"internal fault: {error!r} (--verbose shows where)"
    if isinstance(error, ContextFullError):
        return code, (
            f"the prompt does not fit: {error.sizes}; --context-length sets a larger "
            "context, up to the limit of the model"
        )
    if isinstance(error, ImportError):
        return code, f"{NO_MEMORY_TEXT} for a library: {error}"
    return code, str(error) or NO_MEMORY_TEXT  # a MemoryError has no message


def _dispatch(options: Options, console: Console) -> None:
    """Call the selected action, importing only its module."""
    for flag, (module, function) in _ACTIONS.items():
        if getattr(options, flag) not in (None, False, ()):
            getattr(import_module(f".{module}", __package__), function)(options, console)
            return
    if options.jsonl is not None:
        answer_file(options, console, options.jsonl)
    elif options.examples and not _input_is_terminal():
        console.report(*example_lines())
    else:
        if options.example is not None:
            options = dataclasses.replace(options, **vars(EXAMPLES[options.example - 1]))
        _answer_or_chat(options, console)


def _answer_or_chat(options: Options, console: Console) -> None:
    """Answer the prompt, with a trace if requested, or start a chat."""
    prompt = find_prompt(options, console)
    if prompt is not None and prompt != options.prompt:
        # The trace prints the entire prompt.
        options = dataclasses.replace(options, prompt=None)
    if prompt is None:
        for flag in ("diagrams", "explore"):
            if getattr(options, flag) is not None:
                problem = "expected a prompt (-p, -f or standard input), got none"
                raise UsageError(f"--{flag}: {problem}")
        if options.model is None and options.context_length is None:
            options = dataclasses.replace(options, context_length=BUNDLED_CHAT_LENGTH)
    session = open_session(options, console)
    with ExitStack() as views:
        if options.prompt_cache is not None:
            views.enter_context(prompt_cached(session, options.prompt_cache))
        if options.save_activation:
            from .interventions import saved_activations

            views.enter_context(saved_activations(session, options))
        if options.explore is not None:
            from .explore import record_page

            views.enter_context(record_page(session, options, options.explore, prompt))
        if options.diagrams is not None:
            from .explore import record_diagrams

            views.enter_context(record_diagrams(session, options.diagrams))
        if prompt is None:
            from .chat import chat

            chat(session)
        elif not session.ask(prompt).is_complete:
            raise KeyboardInterrupt
        if options.branch is not None and prompt is not None:
            from .branching import branch_last

            place, token = options.branch
            console.report(*branch_last(session, f"{place} {token}").split("\n"))
        if session.interventions and prompt is not None:
            from .interventions import unreached

            for line in unreached(session.interventions):
                console.warn(line)


def find_prompt(options: Options, console: Console) -> str | None:
    """Return the prompt of this run, or None if the user can type messages.

    The text of a file or of standard input precedes the question of `-p`, with a blank
    line between them.
    """
    question = options.prompt
    path = _STANDARD_INPUT if options.standard_input else options.file
    if path is None and question is None:
        if _input_is_terminal():
            return None
        path = _STANDARD_INPUT
    if path is None and options.example is None and _input_comes(console):
        path = _STANDARD_INPUT
    if path != _STANDARD_INPUT and _text_is_waiting():
        where = "--example" if path is None else _input_label(path)
        got = "got text (< /dev/null ignores it)"
        raise UsageError(f"standard input: expected no text together with {where}, {got}")

    if question is not None and not question.strip():
        raise UsageError("--prompt: expected text, got an empty text")
    if path is None:
        return question
    text = _read_prompt(path)
    if not text.strip():
        if question is None or path != _STANDARD_INPUT:
            raise UsageError(
                f"{_input_label(path)}: prompt: expected text, got an empty text"
            )
        return question
    if question is None:
        return text
    console.note(f"{_input_label(path)}: {len(text)} characters before the question")
    return f"{text.rstrip()}\n\n{question}"


def _input_is_terminal() -> bool:
    """Return whether the user can type; False if standard input is closed."""
    return sys.stdin is not None and (sys.stdin.isatty() or mpirun_is_at_terminal(0))


def _input_comes(console: Console) -> bool:
    """Return whether standard input contains text that precedes the question.

    Programs such as cron, CI runners and ssh may leave standard input open without ever
    writing to it. Unless a pipeline writes to it, this function therefore waits only for
    a moment for the first byte or the end of the input.
    """
    if sys.stdin is None or _input_is_terminal():
        return False
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # in a notebook, standard input is not a file
        return isinstance(sys.stdin, TextIOWrapper)
    seconds = None if _is_fed_by_pipeline(descriptor) else _SECONDS_OF_PATIENCE
    if select.select([descriptor], [], [], seconds)[0]:
        return True
    console.warn(
        f"standard input: expected text or its end within {_SECONDS_OF_PATIENCE:g} s, "
        "got neither; answering the question alone (- waits for text, < /dev/null "
        "ignores standard input)"
    )
    return False


def _is_fed_by_pipeline(descriptor: int) -> bool:
    """Return whether a program of the same shell writes to the pipe (Linux only)."""
    shell = os.getppid()
    try:
        pipe = os.readlink(f"/proc/self/fd/{descriptor}")
        programs = Path(f"/proc/{shell}/task/{shell}/children").read_text("ascii").split()
    except OSError:
        return False
    return pipe.startswith("pipe:") and any(
        _writes_to(pipe, program) for program in programs
    )


def _writes_to(pipe: str, program: str) -> bool:
    """Return whether a process has the pipe open for writing; False if unknown."""
    try:
        descriptors = list(os.scandir(f"/proc/{program}/fd"))
        return any(
            os.readlink(descriptor.path) == pipe
            and os.lstat(descriptor.path).st_mode & stat.S_IWUSR
            for descriptor in descriptors
        )
    except OSError:
        return False


def _text_is_waiting() -> bool:
    """Return whether text is available on standard input, without waiting for it."""
    if sys.stdin is None or sys.stdin.isatty():
        return False
    try:
        return any(fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4)))
    except OSError:  # a device that cannot contain text, such as /dev/null
        return False


def _input_label(path: Path) -> str:
    """Return the name of an input for messages."""
    return "standard input" if path == _STANDARD_INPUT else label_of(path)


def _open_input(path: Path) -> AbstractContextManager[BinaryIO]:
    """Open standard input or a file, which may be a pipe."""
    if path != _STANDARD_INPUT:
        return open(path, "rb")
    return nullcontext(BytesIO() if sys.stdin is None else sys.stdin.buffer)


def _read_prompt(path: Path) -> str:
    """Read a prompt and strip one newline; only standard input may be invalid UTF-8."""
    where = f"{_input_label(path)}: prompt"
    with usage_errors(f"{where}: expected a readable file"), _open_input(path) as file:
        content = file.read(MOST_PROMPT_BYTES + 1)
    if len(content) > MOST_PROMPT_BYTES:
        raise UsageError(f"{where}: {_TOO_LONG}")
    with usage_errors(f"{where}: expected UTF-8"):
        text = content.decode(
            "utf-8-sig", "replace" if path == _STANDARD_INPUT else "strict"
        )
    return text.removesuffix("\n").removesuffix("\r")


def answer_file(options: Options, console: Console, path: Path) -> None:
    """Answer each line of a file independently, as soon as the line arrives.

    A line that cannot be answered prints one error. If there are such lines, or no lines
    at all, UsageError is raised after the last line. Ctrl-C during an answer raises
    KeyboardInterrupt after the record of that answer is written.
    """
    name = _input_label(path)
    session = None
    done = failed = 0
    for number, line in _lines(path):
        session = session or open_session(options, console)
        done += 1
        try:
            answer = session.answer_apart(_request(session, line), number)
        except CheckpointError:
            raise
        except (ValueError, ml.LlamaBoltsError) as error:
            failed += 1
            console.error(f"{name}: line {number}: {error}")
            continue
        if not answer.is_complete:
            raise KeyboardInterrupt
    if failed or not done:
        got = f"{failed} of {done} without an answer" if done else "no lines"
        raise UsageError(f"{name}: prompts: expected an answer to each line, got {got}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with line numbers starting at 1.

    A line that is too long is truncated just above the limit.
    """
    number = 0
    with (
        usage_errors(f"{_input_label(path)}: prompts: expected a readable file"),
        _open_input(path) as file,
    ):
        while line := file.readline(MOST_PROMPT_BYTES + 1):
            number += 1
            if line.strip():
                yield number, line
            while line and not line.endswith(b"\n"):
                line = file.readline(MOST_PROMPT_BYTES)


def _request(session: Session, line: bytes) -> str | list[Message]:
    """Return the prompt or messages that a line contains.

    Raises:
        ValueError: The line is not a valid request.
        ChatFormatError: A message is invalid.
    """
    if len(line) > MOST_PROMPT_BYTES:
        raise ValueError(_TOO_LONG)
    value = parse_strict_json(line)
    request = {"prompt": value} if isinstance(value, str) else value
    if (
        not isinstance(request, dict)
        or len(request) != 1
        or request.keys() - {"prompt", "messages"}
    ):
        raise ValueError(f"expected {_EXPECTED}, got {described(request)}")
    if "messages" in request:
        if session.completion:
            raise ValueError(
                "messages: expected a prompt with --completion, got messages"
            )
        messages = as_messages(request["messages"])
        return (
            messages
            if messages[0].role == "system"
            else [*session.messages([]), *messages]
        )
    prompt = request["prompt"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"prompt: expected a text, got {described(prompt)}")
    return prompt if session.completion else session.messages([], prompt)
