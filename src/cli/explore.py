"""A run from the inside: one HTML file by `--explore` and `/explore`, SVG files by
`--diagrams`.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import trace
from ..drawing import Recorder, TracedRun, draw_all
from ..explorer import (
    DEFAULT_LIMIT,
    Collector,
    ExplorerError,
    Store,
    prompt_of,
    run_beside,
    run_traced,
    save_html,
)
from ..inference import SamplingArgs
from ..memory import readable_bytes
from ..untrusted import check_writable, label_of
from .answer import PrintedAnswer
from .arguments import DEFAULT_EXPLORER, Options
from .console import UsageError, refused
from .loading import open_beside
from .new_session import template_named
from .session import Session


@contextmanager
def explored(session: Session, options: Options, path: Path) -> Iterator[None]:
    """Record the answer that is given inside, and write its page; refusals come before
    it.
    """
    check_writable(path, UsageError)
    has_two = options.explore_with is not None or options.explore_prompt is not None
    store = Store(options.explore_limit or DEFAULT_LIMIT, 1 + has_two)
    model = session.engine.model
    name = options.explore_with
    beside = session.console, model, session.engine.sequence_length
    other = model if name is None else open_beside(options, *beside, name)
    collector = Collector(model, store)
    with session.trace.recorded(collector):
        yield
    answer = session.last
    assert answer is not None
    runs = [collector.finish()]
    if has_two:
        second = None
        prompt = options.explore_prompt
        if prompt is not None:
            asked = prompt if session.completion else session.messages([], prompt)
            template = template_named(options)
            second = prompt_of(other, asked, template, answer.settings.think != "off")
        most = session.settings.max_tokens or len(answer.ids)
        runs.append(run_beside(other, runs[0], second, most, _repeatable(answer), store))
    session.console.note(_save(runs, store, path))


def explore_last(session: Session, argument: str) -> None:
    """Write the page of the last answer, run again with its own tokens;
    the cache stays.
    """
    answer = session.last
    path = Path(argument) if argument else DEFAULT_EXPLORER
    if answer is None or not answer.ids:
        raise UsageError("/explore: nothing was answered yet")
    check_writable(path, UsageError)
    model = session.engine.model
    sampling = _repeatable(answer)
    store = Store()
    template = None if session.completion else session.chat_format
    ids, _ = prompt_of(model, answer.asked, template, answer.settings.think != "off")
    was_on = trace.is_on()
    trace.stop()
    try:
        run = run_traced(
            model, ids, len(answer.ids), sampling, store, forced_ids=answer.ids
        )
    finally:
        if was_on:
            session.trace.turn_on()
    session.console.reply(_save([run], store, path))


def _repeatable(answer: PrintedAnswer) -> SamplingArgs:
    """Return the sampling of an answer with the seed that it used."""
    assert answer.stats is not None
    return replace(answer.settings.sampling, seed=answer.stats.seed)


def _save(runs: list[dict[str, Any]], store: Store, path: Path) -> str:
    """Write a file, and return a line about it."""
    try:
        size = save_html(runs, store, path)
    except ExplorerError as error:
        raise UsageError(str(error)) from None
    left_out = sorted({line.partition(":")[0] for run in runs for line in run["leftOut"]})
    what = f"; left out in part: {', '.join(left_out)}" if left_out else ""
    return f"{path}: {readable_bytes(size)}, to be opened in a browser{what}"


@contextmanager
def drawn(session: Session, directory: Path) -> Iterator[None]:
    """Record the answer that is given inside, and write its diagrams: all of them, or
    none.
    """
    expected = f"{directory}: --diagrams: expected a writable directory"
    with refused(expected):  # before the answer, which may take a while
        directory.mkdir(parents=True, exist_ok=True)
    model = session.engine.model
    recorder = Recorder()
    with session.trace.recorded(recorder):
        yield
    name = f"this run of {label_of(Path(*model.source_directory.parts[-2:]))}"
    sizes = model.args.sizes | {"C": session.engine.context.caches[0].capacity}
    pictures = draw_all(TracedRun(name, sizes, recorder.events))
    with refused(expected), tempfile.TemporaryDirectory(dir=directory) as unfinished:
        for file, text in pictures.items():
            Path(unfinished, file).write_text(text, encoding="utf-8")
        for file in pictures:  # once the last one is on the disk
            Path(unfinished, file).replace(directory / file)
    session.console.note(f"{len(pictures)} diagrams in {directory}")
