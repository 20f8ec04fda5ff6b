"""`--diagrams DIR`: a picture of each stage that the answer to a prompt went through."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..drawing import Recorder, TracedRun, draw_all
from .console import refused
from .session import Session


@contextlib.contextmanager
def drawn(session: Session, directory: Path) -> Iterator[None]:
    """Record the answer that is given inside, and write its diagrams: all of them, or none.

    Raise UsageError where the directory, which is made if it is not there, cannot be written.
    """
    expected = f"{directory}: --diagrams: expected a writable directory"
    with refused(expected):  # before the answer, which may take a while
        directory.mkdir(parents=True, exist_ok=True)
    model = session.engine.model
    recorder = Recorder()
    with session.trace.recorded(recorder):
        yield
    name = f"this run of {'/'.join(model.source_directory.parts[-2:])}"
    sizes = model.args.sizes | {"C": session.engine.context.caches[0].capacity}
    pictures = draw_all(TracedRun(name, sizes, recorder.events))
    with refused(expected), tempfile.TemporaryDirectory(dir=directory) as unfinished:
        for file, text in pictures.items():
            Path(unfinished, file).write_text(text, encoding="utf-8")
        for file in pictures:  # once the last one is on the disk
            Path(unfinished, file).replace(directory / file)
    session.console.note(f"{len(pictures)} diagrams in {directory}")
