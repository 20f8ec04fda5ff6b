"""`--diagrams DIR`: a picture of each stage that the answer to a prompt went through."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import trace
from ..drawing import Recorder, TracedRun, draw_all
from .console import refused
from .session import Session


@contextlib.contextmanager
def drawn(session: Session, directory: Path) -> Iterator[None]:
    """Record the answer that is given inside, and write its diagrams: all of them, or none.

    Args:
        session: A session without history.
        directory: Where the files go; it is made if it is not there.

    Raises:
        UsageError: The directory or a file in it cannot be written.
    """
    with _made_directory(directory):  # before the answer, which may take a while
        model = session.engine.model
        recorder = Recorder()
        session.trace.record(recorder)
        try:
            yield
        finally:
            trace.stop()
        name = f"this run of {'/'.join(model.source_directory.parts[-2:])}"
        sizes = model.args.sizes | {"C": session.engine.context.caches[0].capacity}
        pictures = draw_all(TracedRun(name, sizes, recorder.events))
        _write_all(directory, pictures)
    session.console.note(f"{len(pictures)} diagrams in {directory}")


@contextlib.contextmanager
def _made_directory(directory: Path) -> Iterator[None]:
    """Make a directory and those that it lies in; what is empty of them at the end is removed."""
    missing = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    try:
        with _refused(directory):
            directory.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()


def _write_all(directory: Path, pictures: Mapping[str, str]) -> None:
    """Write all files or none: each gets its name once the last one is on the disk."""
    with (
        _refused(directory),
        tempfile.TemporaryDirectory(prefix=".llama-bolts-", dir=directory) as unfinished,
    ):
        for file, text in pictures.items():
            Path(unfinished, file).write_text(text, encoding="utf-8")
        for file in pictures:
            Path(unfinished, file).replace(directory / file)


def _refused(directory: Path) -> contextlib.AbstractContextManager[None]:
    return refused(f"{directory}: --diagrams: expected a writable directory")
