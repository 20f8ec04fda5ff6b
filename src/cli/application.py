"""What the command line does, and how it ends; and the prompts of a run that is not a chat."""

import dataclasses
import fcntl
import platform
import sys
import termios
import time
import traceback
import warnings
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import BinaryIO

from .. import __version__, ml, trace
from ..checkpoint import CheckpointError, FileMemoryError
from ..inference import (
    ChatFormatError,
    ContextFullError,
    GrammarError,
    Message,
    NumericError,
    PromptError,
    SamplingError,
    as_messages,
)
from ..memory import NO_MEMORY_TEXT, is_lack_of_memory, readable_bytes
from ..ml.kernels import KernelSettingError, exit_on_bus_error, keep_freed_memory
from ..model.errors import NotEnoughMemoryError, SaveError
from ..untrusted import described, label_of, parse_strict_json, replace_surrogates
from . import mpi_place, mpirun_is_at_terminal
from .arguments import BUNDLED_CHAT_LENGTH, EXAMPLES, Options, example_lines
from .console import Console, DifferenceError, OutputError, UsageError, refused
from .loading import open_model, open_model_to_run, open_session, prompt_cached, save_model
from .session import Session

# A million tokens of prose: more than a context holds, and not worth the time to count exactly.
MOST_PROMPT_BYTES = 4 << 20
_EXPECTED = 'a text, or an object with "prompt" or "messages" alone'

DONE, FAULT, USAGE, BAD_MODEL, NO_MEMORY, NUMERIC = range(6)

# The first class that an error belongs to decides; every other error of ours is a bad model.
_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (UsageError, USAGE),
    (PromptError, USAGE),
    (ContextFullError, USAGE),
    (SamplingError, USAGE),
    (ChatFormatError, USAGE),
    (GrammarError, USAGE),
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
    except OutputError as error:
        if error.closed:
            return DONE  # the reader has what it wanted, as with `| head`
        console.error(str(error))
        return FAULT
    except Exception as error:  # noqa: BLE001 - the last place that can turn a fault into one line
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
    isa, threads, threading = kernels["isa"], kernels["threads"], kernels["threading"]
    if options.threads is not None and options.threads > threads:
        none = threading == "serial"
        reason = "built without threads" if none else "the system or the library gives no more"
        console.warn(f"--threads {options.threads}: the kernels use {threads}: {reason}")
    console.detail(
        f"llama-bolts {__version__}, Python {platform.python_version()}; kernels for {isa} by "
        f"{kernels['compiler']}, {threading}, {threads} threads"
    )


def told(error: Exception) -> tuple[int, str]:
    """Return the exit code that an error ends the process with, and the line that tells it."""
    of_kind = (code for kind, code in _EXIT_CODES if isinstance(error, kind))
    code = NO_MEMORY if is_lack_of_memory(error) else next(of_kind, FAULT)
    if code == FAULT and not isinstance(error, DifferenceError):
        return code, f"internal fault: {error!r} (--verbose shows where)"
    if isinstance(error, ContextFullError):
        return code, (
            f"the prompt does not fit: it takes {error.tokens} tokens, and the context has "
            f"{error.positions}; a larger --context-length makes room, as far as the model goes"
        )
    if isinstance(error, ImportError):
        return code, f"{NO_MEMORY_TEXT} for a library: {error}"
    return code, str(error) or NO_MEMORY_TEXT  # a MemoryError of Python has no text


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
    elif options.save_quantized is not None or options.save_gguf is not None:
        save_model(options, console)
    elif options.bench:
        from .bench import report_bench

        report_bench(console, *open_model_to_run(options, console))
    elif options.serve is not None:
        from .serve import serve_model

        serve_model(options, console)
    elif options.jsonl is not None:
        answer_file(options, console)
    elif options.examples and not standard_input_is_terminal():
        for line in example_lines():
            console.report_line(line)
    else:
        if options.example is not None:
            options = dataclasses.replace(options, **vars(EXAMPLES[options.example - 1]))
        _answer_or_chat(options, console)


def _answer_or_chat(options: Options, console: Console) -> None:
    """Answer the prompt of this run, shown from the inside if wanted; chat where there is none."""
    prompt = find_prompt(options)
    if prompt is None and options.model is None and options.context_length is None:
        options = dataclasses.replace(options, context_length=BUNDLED_CHAT_LENGTH)
    session = open_session(options, console)
    for flag in ("diagrams", "explore"):
        if prompt is None and getattr(options, flag) is not None:
            raise UsageError(f"--{flag}: expected a prompt (-p, -f or standard input), got none")
    with prompt_cached(session.engine, options.prompt_cache), ExitStack() as views:
        if options.explore is not None:
            from .explore import explored

            views.enter_context(explored(session, options))
        if options.diagrams is not None:
            from .diagrams import drawn

            views.enter_context(drawn(session, options.diagrams))
        if prompt is None:
            from .chat import chat

            chat(session, shows_examples=options.examples)
        elif not session.ask(prompt).is_complete:
            raise KeyboardInterrupt


def find_prompt(options: Options) -> str | None:
    """Return the prompt that this run is to answer, or None for a chat.

    It is given with `-p`, in a file, or on standard input, which is read when it is not a terminal.
    One newline at the end of a file or of standard input is not part of the prompt. A file must be
    UTF-8; on standard input other bytes become U+FFFD.

    Args:
        options: The command line.

    Raises:
        UsageError: The file cannot be read or is not text, or the prompt is empty or far too long;
            or text waits on standard input beside a prompt.
    """
    if options.prompt is not None:
        where, prompt = "--prompt", options.prompt
    elif options.file is not None:
        where, prompt = str(options.file), _read_file(options.file)
    elif options.standard_input or not standard_input_is_terminal():
        where, prompt = "standard input", _read_standard_input()
    else:
        return None
    if where != "standard input":
        _refuse_waiting_input(where)
    if not prompt.strip():
        raise UsageError(f"{where}: prompt: expected text, got none")
    return prompt


def standard_input_is_terminal() -> bool:
    """Return whether a person can type; false where standard input is closed."""
    return sys.stdin is not None and (sys.stdin.isatty() or mpirun_is_at_terminal(0))


def _refuse_waiting_input(where: str) -> None:
    """Refuse text that nobody would read; text that comes later is not waited for."""
    if sys.stdin is None or sys.stdin.isatty():
        return
    try:
        waiting = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
    except OSError:  # nothing that can hold text, such as /dev/null
        return
    if any(waiting):
        raise UsageError(
            f"standard input: expected nothing beside {where}, got text; < /dev/null leaves it out"
        )


def _read_file(path: Path) -> str:
    with refused(f"{path}: prompt: expected a readable file"), open(path, "rb") as file:
        content = _read_limited(file, str(path))
    try:
        return _without_last_newline(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: prompt: expected UTF-8, got other bytes at byte {error.start}"
        ) from None


def _read_standard_input() -> str:
    if sys.stdin is None:
        return ""
    try:
        content = _read_limited(sys.stdin.buffer, "standard input")
    except OSError as error:
        raise UsageError(f"standard input: expected text, got {error.strerror}") from None
    return _without_last_newline(content.removeprefix(BOM_UTF8).decode("utf-8", "replace"))


def _read_limited(stream: BinaryIO, where: str) -> bytes:
    """Read to the end, unless it does not come within reason."""
    content = stream.read(MOST_PROMPT_BYTES + 1)
    if len(content) > MOST_PROMPT_BYTES:
        limit = readable_bytes(MOST_PROMPT_BYTES)
        raise UsageError(f"{where}: prompt: expected at most {limit}, got more")
    return content


def _without_last_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def answer_file(options: Options, console: Console) -> None:
    """Answer each line of a file by itself; one that cannot be answered is one line of error.

    A line holds a JSON string, `{"prompt": "..."}` or `{"messages": [{"role": ..., "content":
    ...}]}`. The system prompt of the command line goes before messages that have none. Blank lines
    are passed over. Lines are read as they are needed, so that the file may be a pipe.

    Args:
        options: The command line.
        console: Takes the records and the errors.

    Raises:
        UsageError: The file cannot be read or holds no line, or a line had no answer, which is
            raised after the last one.
        KeyboardInterrupt: Ctrl-C in an answer, which has its record.
        LlamaBoltsError: As `open_session`, or the model's files were changed.
    """
    path = options.jsonl
    assert path is not None
    name = "standard input" if str(path) == "-" else label_of(path)
    session = None
    done = failed = 0
    for number, line in _lines(path, name):
        if session is None:
            session = open_session(options, console)
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


def _lines(path: Path, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not blank, counted from 1; the beginning of one that is too long."""
    number = 0
    with (
        refused(f"{name}: prompts: expected a readable file"),
        nullcontext(sys.stdin.buffer) if str(path) == "-" else open(path, "rb") as file,
    ):
        while line := file.readline(MOST_PROMPT_BYTES + 1):
            number += 1
            if line.strip():
                yield number, line
            while line and not line.endswith(b"\n"):
                line = file.readline(MOST_PROMPT_BYTES)


def _request(session: Session, line: bytes) -> str | list[Message]:
    """Return what a line asks: a text to continue, or a conversation.

    Raises:
        ValueError, ChatFormatError: It is not what is expected.
    """
    if len(line) > MOST_PROMPT_BYTES:
        raise ValueError(f"expected at most {readable_bytes(MOST_PROMPT_BYTES)}, got more")
    found = parse_strict_json(line)
    asked = {"prompt": found} if isinstance(found, str) else found
    if not isinstance(asked, dict) or len(asked) != 1 or asked.keys() - {"prompt", "messages"}:
        raise ValueError(f"expected {_EXPECTED}, got {described(asked)}")
    if "messages" in asked:
        if session.completion:
            raise ValueError("expected a prompt, since texts are continued, got messages")
        messages = [
            Message(m.role, replace_surrogates(m.content)) for m in as_messages(asked["messages"])
        ]
        if messages[0].role == "system":
            return messages
        return [*session.messages([]), *messages]
    prompt = asked["prompt"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"prompt: expected a text, got {described(prompt)}")
    prompt = replace_surrogates(prompt)
    return prompt if session.completion else session.messages([], prompt)
