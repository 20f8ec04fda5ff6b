"""Record a run: HTML for `--explore` and `/explore`, SVG for `--diagrams`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import trace
from ..drawing import Recorder, TracedRun, draw_all
from ..explorer import (
    BASE,
    DEFAULT_LIMIT,
    Collector,
    ExplorerError,
    Store,
    patches_record,
    prompt_of,
    prompt_record,
    run_beside,
    run_traced,
    save_html,
)
from ..inference import PromptError, SamplingArgs
from ..inference.patching import scan_patches
from ..memory import readable_bytes
from ..untrusted import check_writable, label_of
from .answer import PrintedAnswer
from .arguments import DEFAULT_EXPLORER, Options
from .console import UsageError, usage_errors
from .loading import open_second_model
from .new_session import template_named
from .session import Session


@contextmanager
def record_page(
    session: Session, options: Options, path: Path, prompt: str | None
) -> Iterator[None]:
    """Check the arguments, record the answer in the `with` block, and write its page."""
    check_writable(path, UsageError)
    has_two = options.explore_with is not None or options.explore_prompt is not None
    store = Store(options.explore_limit or DEFAULT_LIMIT, 1 + has_two)
    model = session.engine.model
    name = options.explore_with
    console = session.console
    positions = session.engine.sequence_length
    adapters = session.active_adapters
    changes = session.interventions
    has_other_model = name is not None
    if name == BASE and not adapters and not changes:
        expected = "expected --lora or --set-activation"
        raise UsageError(f"--explore-with base: {expected}, got neither")
    if name in (None, BASE):
        other = model
    else:
        assert name is not None
        other = open_second_model(options, console, model, positions, name)
    patches = None
    if options.explore_patches and prompt is not None:
        patches = _scan(session, options, prompt)  # before the answer, to reject it early
    collector = Collector(model, store, adapters=adapters, interventions=changes)
    with session.trace.recorded(collector):
        yield
    answer = session.last
    assert answer is not None
    runs = [collector.finish()]
    if has_two:
        second = None
        text = options.explore_prompt
        if text is not None:
            question = text if session.completion else session.messages([], text)
            template = template_named(options)
            second = prompt_of(other, question, template, answer.settings.think != "off")
        max_new_tokens = session.settings.max_tokens or len(answer.ids)
        runs.append(
            run_beside(
                other,
                runs[0],
                second,
                max_new_tokens,
                _repeatable(answer),
                store,
                () if has_other_model else adapters,
                () if has_other_model else changes,
            )
        )
        if patches is not None:
            runs[0]["patches"] = patches
    session.console.note(_save(runs, store, path))


def _scan(session: Session, options: Options, prompt: str) -> dict[str, Any]:
    """Return the effects of patching a prompt with tensors of the other prompt."""
    assert options.explore_prompt is not None
    model = session.engine.model
    thinks = session.settings.think != "off"
    ids = []
    for text in (prompt, options.explore_prompt):
        question = text if session.completion else session.messages([], text)
        ids.append(prompt_of(model, question, template_named(options), thinks)[0])
    try:
        return patches_record(scan_patches(model, ids[0], ids[1]))
    except PromptError as error:
        raise UsageError(f"--explore-patches: {error}") from None


def explore_last(session: Session, argument: str) -> None:
    """Replay the last answer with its own tokens and write its page.

    The engine's cache is not changed.
    """
    answer = session.last
    path = Path(argument) if argument else DEFAULT_EXPLORER
    if answer is None or not answer.ids:
        raise UsageError("/explore: expected an answer, got none yet")
    check_writable(path, UsageError)
    model = session.engine.model
    sampling = _repeatable(answer)
    store = Store()
    template = None if session.completion else session.chat_format
    ids, _ = prompt_of(model, answer.prompt, template, answer.settings.think != "off")
    was_on = trace.is_on()
    trace.stop()
    try:
        run = run_traced(
            model,
            ids,
            len(answer.ids),
            sampling,
            store,
            forced_ids=answer.ids,
            adapters=session.active_adapters,
            interventions=session.interventions,
        )
    finally:
        if was_on:
            session.trace.turn_on()
    run["prompt"] = prompt_record(answer.prompt)
    session.console.reply(_save([run], store, path))


def _repeatable(answer: PrintedAnswer) -> SamplingArgs:
    """Return an answer's sampling settings, with the seed that was used."""
    assert answer.stats is not None
    return replace(answer.settings.sampling, seed=answer.stats.seed)


def _save(runs: list[dict[str, Any]], store: Store, path: Path) -> str:
    """Write a page and return a one-line description of it."""
    try:
        size = save_html(runs, store, path)
    except ExplorerError as error:
        raise UsageError(str(error)) from None
    left_out = sorted({line.partition(":")[0] for run in runs for line in run["leftOut"]})
    omissions = f"; partly omitted: {', '.join(left_out)}" if left_out else ""
    return f"{path}: {readable_bytes(size)}, to open in a browser{omissions}"


@contextmanager
def record_diagrams(session: Session, directory: Path) -> Iterator[None]:
    """Record the answer in the `with` block, and write all of its diagrams or none."""
    expected = f"{directory}: --diagrams: expected a writable directory"
    with usage_errors(expected):  # check before the answer, which may take a while
        directory.mkdir(parents=True, exist_ok=True)
    model = session.engine.model
    recorder = Recorder()
    with session.trace.recorded(recorder):
        yield
    name = f"this run of {label_of(Path(*model.source_directory.parts[-2:]))}"
    sizes = model.args.sizes | {"C": session.engine.context.memory.capacity}
    pictures = draw_all(TracedRun(name, sizes, recorder.events))
    with usage_errors(expected), tempfile.TemporaryDirectory(dir=directory) as unfinished:
        for file, text in pictures.items():
            Path(unfinished, file).write_text(text, encoding="utf-8")
        for file in pictures:  # replace the old files only when all new ones are complete
            Path(unfinished, file).replace(directory / file)
    session.console.note(f"{len(pictures)} diagrams in {directory}")
