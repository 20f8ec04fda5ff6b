"""What the command line does, and how it ends; and the prompts of a run that is not a
chat.
"""

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
from .console import Console, DifferenceError, OutputError, UsageError, refused
from .new_session import open_session, prompt_cached
from .session import Session

# A million tokens of prose: more than a context holds, and not worth the time to count
# exactly.
MOST_PROMPT_BYTES = 4 << 20
_TOO_LONG = f"expected at most {readable_bytes(MOST_PROMPT_BYTES)}, got more"
_STANDARD_INPUT = Path("-")
_SECONDS_OF_PATIENCE = 1.0
_EXPECTED = 'a text, or an object with "prompt" or "messages" alone'

DONE, FAULT, USAGE, BAD_MODEL, NO_MEMORY, NUMERIC = range(6)

_EXPECTED_FAULTS = (DifferenceError, OutputError)
# The first row that an error belongs to decides.
_EXIT_CODES: tuple[tuple[int, tuple[type[Exception], ...]], ...] = (
    (FAULT, _EXPECTED_FAULTS),
    (NUMERIC, (NumericError,)),
    (NO_MEMORY, (NotEnoughMemoryError, FileMemoryError, ml.TensorMemoryError)),
    (BAD_MODEL, (PromptCacheError,)),
    (USAGE, (UsageError, InferenceError, SaveError, KernelSettingError)),
    (BAD_MODEL, (ml.LlamaBoltsError,)),
)
# What is done for a flag, by its module and its function.
_ACTIONS = {
    "info": ("reports", "report_info"),
    "explain": ("reports", "report_stage"),
    "list_models": ("model_list", "report_models"),
    "metadata": ("reports", "report_metadata"),
    "verify": ("verify", "report_verify"),
    "bench": ("bench", "report_bench"),
    "perplexity": ("perplexity", "report_perplexity"),
    "serve": ("serve", "serve_model"),
    "save_quantized": ("loading", "save_model"),
    "save_gguf": ("loading", "save_model"),
}


def run(options: Options) -> int:
    """Do what the command line asks for, and return the exit code; Ctrl-C is for the
    caller.
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

            return run_rank(options, console, _run_and_report, told)
        finally:
            trace.stop()


def _run_and_report(options: Options, console: Console) -> int:
    start = time.perf_counter()
    try:
        _set_threads(options, console)
        _dispatch(options, console)
        console.detail(f"{time.perf_counter() - start:.2f} s for the whole run")
        return DONE
    # This is the last place that can turn a fault into one line.
    except Exception as error:  # noqa: BLE001
        if isinstance(error, OutputError) and error.closed:
            return DONE  # the reader has what it wanted, as with `| head`
        code, text = told(error)
        console.error(text)
        if console.verbose:
            console.reply(traceback.format_exc())
        return code


def _set_threads(options: Options, console: Console) -> None:
    """Set the threads of the command line, and say what runs the kernels."""
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


def told(error: Exception) -> tuple[int, str]:
    """Return the exit code that an error ends the process with, and the line that tells
    it.
    """
    of_kind = (code for code, kinds in _EXIT_CODES if isinstance(error, kinds))
    code = NO_MEMORY if is_lack_of_memory(error) else next(of_kind, FAULT)
    if code == FAULT and not isinstance(error, _EXPECTED_FAULTS):
        return code, f"internal fault: {error!r} (--verbose shows where)"
    if isinstance(error, ContextFullError):
        return code, (
            f"the prompt does not fit: {error.sizes}; a larger --context-length makes "
            "room, as far as the model goes"
        )
    if isinstance(error, ImportError):
        return code, f"{NO_MEMORY_TEXT} for a library: {error}"
    return code, str(error) or NO_MEMORY_TEXT  # a MemoryError of Python has no text


def _dispatch(options: Options, console: Console) -> None:
    """Call what the command line names, in a module that is not imported for anything
    else.
    """
    for flag, (module, function) in _ACTIONS.items():
        if getattr(options, flag) not in (None, False):
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
    """Answer the prompt of this run, shown from the inside if wanted; chat where there is
    none.
    """
    prompt = find_prompt(options, console)
    if prompt is not None and prompt != options.prompt:
        options = dataclasses.replace(options, prompt=None)  # a trace shows the whole one
    if prompt is None:
        for flag in ("diagrams", "explore"):
            if getattr(options, flag) is not None:
                rule = "expected a prompt (-p, -f or standard input), got none"
                raise UsageError(f"--{flag}: {rule}")
        if options.model is None and options.context_length is None:
            options = dataclasses.replace(options, context_length=BUNDLED_CHAT_LENGTH)
    session = open_session(options, console)
    with ExitStack() as views:
        if options.prompt_cache is not None:
            views.enter_context(prompt_cached(session.engine, options.prompt_cache))
        if options.explore is not None:
            from .explore import explored

            views.enter_context(explored(session, options, options.explore))
        if options.diagrams is not None:
            from .explore import drawn

            views.enter_context(drawn(session, options.diagrams))
        if prompt is None:
            from .chat import chat

            chat(session)
        elif not session.ask(prompt).is_complete:
            raise KeyboardInterrupt


def find_prompt(options: Options, console: Console) -> str | None:
    """Return the prompt of this run; None where a person can type.

    The text of a file or of standard input goes before the question of `-p`, with a blank
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
        where = "--example" if path is None else _named(path)
        got = "got text; < /dev/null leaves it out"
        raise UsageError(f"standard input: expected nothing with {where}, {got}")

    if question is not None and not question.strip():
        raise UsageError("--prompt: prompt: expected text, got none")
    if path is None:
        return question
    text = _read_prompt(path)
    if not text.strip():
        if question is None or path != _STANDARD_INPUT:
            raise UsageError(f"{_named(path)}: prompt: expected text, got none")
        return question
    if question is None:
        return text
    console.note(f"{_named(path)}: {len(text)} characters go before the question")
    return f"{text.rstrip()}\n\n{question}"


def _input_is_terminal() -> bool:
    """Return whether a person can type; false where standard input is closed."""
    return sys.stdin is not None and (sys.stdin.isatty() or mpirun_is_at_terminal(0))


def _input_comes(console: Console) -> bool:
    """Return whether standard input is there to be read to its end, before a question.

    A program that runs this one may leave its own standard input open without ever
    writing to it, as cron, CI and ssh do. So a first byte, or the end, is waited for a
    moment only, unless a pipeline writes to standard input.
    """
    if sys.stdin is None or _input_is_terminal():
        return False
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # a notebook has another kind of standard input
        return isinstance(sys.stdin, TextIOWrapper)
    seconds = None if _is_fed_by_pipeline(descriptor) else _SECONDS_OF_PATIENCE
    if select.select([descriptor], [], [], seconds)[0]:
        return True
    console.warn(
        f"standard input: expected text or its end within {_SECONDS_OF_PATIENCE:g} s, "
        "got neither; the question is asked alone (- waits for text, < /dev/null leaves "
        "it out)"
    )
    return False


def _is_fed_by_pipeline(descriptor: int) -> bool:
    """Return whether a program that the same shell started writes to a pipe; Linux alone
    knows.
    """
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
    """Return whether a process has a pipe open for writing; false where that is not
    shown.
    """
    try:
        descriptors = list(os.scandir(f"/proc/{program}/fd"))
        return any(
            os.readlink(each.path) == pipe and os.lstat(each.path).st_mode & stat.S_IWUSR
            for each in descriptors
        )
    except OSError:
        return False


def _text_is_waiting() -> bool:
    """Return whether text is on standard input; text that comes later is not waited
    for.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return False
    try:
        return any(fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4)))
    except OSError:  # nothing that can hold text, such as /dev/null
        return False


def _named(path: Path) -> str:
    return "standard input" if path == _STANDARD_INPUT else label_of(path)


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file, which may be a pipe, or standard input."""
    if path != _STANDARD_INPUT:
        return open(path, "rb")
    return nullcontext(BytesIO() if sys.stdin is None else sys.stdin.buffer)


def _read_prompt(path: Path) -> str:
    """Read text without its last newline; other bytes than UTF-8 are for standard input
    alone.
    """
    where = f"{_named(path)}: prompt"
    with refused(f"{where}: expected a readable file"), _opened(path) as file:
        content = file.read(MOST_PROMPT_BYTES + 1)
    if len(content) > MOST_PROMPT_BYTES:
        raise UsageError(f"{where}: {_TOO_LONG}")
    with refused(f"{where}: expected UTF-8"):
        text = content.decode(
            "utf-8-sig", "replace" if path == _STANDARD_INPUT else "strict"
        )
    return text.removesuffix("\n").removesuffix("\r")


def answer_file(options: Options, console: Console, path: Path) -> None:
    """Answer each line of a file by itself, as it comes.

    One that cannot be answered is one line of error, and a UsageError after the last one,
    as is a file without lines. Raise KeyboardInterrupt for Ctrl-C in an answer, which has
    its record.
    """
    name = _named(path)
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
        got = f"{failed} of {done} without one" if done else "no lines"
        raise UsageError(f"{name}: prompts: expected an answer to each line, got {got}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not blank, counted from 1; the beginning of one that is too
    long.
    """
    number = 0
    with (
        refused(f"{_named(path)}: prompts: expected a readable file"),
        _opened(path) as file,
    ):
        while line := file.readline(MOST_PROMPT_BYTES + 1):
            number += 1
            if line.strip():
                yield number, line
            while line and not line.endswith(b"\n"):
                line = file.readline(MOST_PROMPT_BYTES)


def _request(session: Session, line: bytes) -> str | list[Message]:
    """Return what a line asks; raise ValueError or ChatFormatError where it is something
    else.
    """
    if len(line) > MOST_PROMPT_BYTES:
        raise ValueError(_TOO_LONG)
    found = parse_strict_json(line)
    asked = {"prompt": found} if isinstance(found, str) else found
    if (
        not isinstance(asked, dict)
        or len(asked) != 1
        or asked.keys() - {"prompt", "messages"}
    ):
        raise ValueError(f"expected {_EXPECTED}, got {described(asked)}")
    if "messages" in asked:
        if session.completion:
            raise ValueError("expected a prompt, since texts are continued, got messages")
        messages = as_messages(asked["messages"])
        return (
            messages
            if messages[0].role == "system"
            else [*session.messages([]), *messages]
        )
    prompt = asked["prompt"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"prompt: expected a text, got {described(prompt)}")
    return prompt if session.completion else session.messages([], prompt)
