"""`--explore` and `/explore`: a run as one HTML file that shows it from the inside."""

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import trace
from ..explorer import (
    DEFAULT_LIMIT,
    Collector,
    Store,
    document_of,
    facts_of,
    model_name,
    prompt_of,
    run_beside,
    run_traced,
    save_html,
)
from ..inference import SamplingArgs, encode_chat
from ..memory import readable_bytes
from ..model import Model, load_model, read_model_files
from .answer import Answer
from .arguments import DEFAULT_EXPLORER, QUANTIZATION_NAMES, Options
from .console import UsageError
from .loading import QUANTIZING
from .session import Session


@contextmanager
def explored(session: Session, options: Options) -> Iterator[None]:
    """Record the answer that is given inside, and write its page once it is complete.

    Args:
        session: A session without history.
        options: The command line: the file, its limit, and what is shown beside the run.

    Raises:
        UsageError: The file cannot be written, before anything is run.
        ExplorerError: A limit that leaves no room, or another model with other tokens.
        ModelError, CheckpointError, TokenizerError: The other model cannot be used.
    """
    path = options.explore
    assert path is not None
    _check_writable(path)
    has_two = options.explore_with is not None or options.explore_prompt is not None
    store = Store(options.explore_limit or DEFAULT_LIMIT, 1 + has_two)
    model = session.engine.model
    other = _other_model(session, options)
    facts = facts_of(model)  # before the trace, which would show what is measured
    collector = Collector(model, store, model_name(model))
    session.trace.record(collector)
    try:
        yield
    finally:
        session.trace.turn_off()
    answer = session.last
    assert answer is not None
    runs = [collector.finish(facts | {"forced": False})]
    if has_two:
        prompt: Any = options.explore_prompt
        if prompt is not None and not session.completion:
            prompt = session.messages([], prompt)
        beside = None
        if prompt is not None:
            name = None if session.completion else session.chat_format.name
            beside = prompt_of(other, prompt, name)
        sampling = _repeatable(answer)
        most = session.settings.max_tokens or len(answer.ids)
        runs.append(run_beside(other, runs[0], beside, most, sampling, store))
    session.console.note(_save(runs, store, path))


def explore_last(session: Session, argument: str) -> None:
    """Write the page of the last answer: it is run again with its own tokens, with a trace on.

    Args:
        session: The chat; its cache stays as it is.
        argument: The file; `explore.html` where it is empty.

    Raises:
        UsageError: Nothing was answered, or the file cannot be written.
    """
    answer, path = session.last, Path(argument) if argument else DEFAULT_EXPLORER
    if answer is None or not answer.ids:
        raise UsageError("/explore: nothing was answered yet")
    _check_writable(path)
    request, model = session.last_request, session.engine.model
    if isinstance(request, str):
        ids = session.tokenizer.encode(request, bos=session.tokenizer.adds_bos, eos=False)
    else:
        name, think = session.chat_format.name, answer.settings.think != "off"
        ids = encode_chat(session.tokenizer, request, chat_format=name, think=think)
    was_on, store = trace.is_on(), Store()
    session.trace.turn_off()
    try:
        run = run_traced(
            model, ids, len(answer.ids), _repeatable(answer), store, model_name(model),
            forced_ids=answer.ids,
        )  # fmt: skip
    finally:
        if was_on:
            session.trace.turn_on()
    session.console.reply(_save([run], store, path))


def _repeatable(answer: Answer) -> SamplingArgs:
    """Return the sampling of an answer with the seed that it used."""
    assert answer.stats is not None
    return dataclasses.replace(answer.settings.sampling, seed=answer.stats.seed)


def _other_model(session: Session, options: Options) -> Model:
    """Load what `--explore-with` names: a format for the same model, or another model."""
    name = options.explore_with
    if name is None:
        return session.engine.model
    is_format = name in QUANTIZATION_NAMES
    files = read_model_files(options.model if is_format else Path(name))
    try:
        return load_model(
            files,
            rope_scaling_factor=options.rope_scaling_factor if is_format else None,
            quantize=name if is_format else None,
            progress=session.console.timed_progress(*QUANTIZING),
        )
    finally:
        session.console.clear_progress()


def _save(runs: list[dict[str, Any]], store: Store, path: Path) -> str:
    """Write a file, and return a line about it."""
    try:
        size = save_html(document_of(runs, store), store, path)
    except OSError as error:
        raise _refusal(path, error) from None
    left_out = sorted({line.partition(":")[0] for run in runs for line in run["leftOut"]})
    what = f"; left out in part: {', '.join(left_out)}" if left_out else ""
    return f"{path}: {readable_bytes(size)}, to be opened in a browser{what}"


def _check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before a long answer, not after it."""
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _refusal(path, error) from None


def _refusal(path: Path, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"{path}: --explore: expected a writable file, got {reason}")
