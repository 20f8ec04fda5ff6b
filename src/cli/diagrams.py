"""`--diagrams DIR`: the answer to a prompt, and a picture of each stage that it went through."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..drawing import Recorder, TracedRun, draw_all
from .console import UsageError
from .session import Session


def answer_and_draw(session: Session, prompt: str, directory: Path) -> None:
    """Answer a prompt and write the diagrams of the run: all of them, or none.

    Args:
        session: a session without history.
        prompt: the prompt.
        directory: where the files go; it is made if it is not there.

    Raises:
        KeyboardInterrupt: the answer was interrupted; nothing is drawn.
        UsageError: the directory or a file in it cannot be written.
    """
    with _made_directory(directory):  # before the answer, which may take a while
        model = session.engine.model
        recorder = Recorder()
        session.trace.record(recorder)
        try:
            is_complete = session.ask(prompt).is_complete
        finally:
            session.trace.turn_off()
        if not is_complete:
            raise KeyboardInterrupt
        name = f"this run of {'/'.join(model.source_directory.parts[-2:])}"
        sizes = model.args.sizes | {"C": session.engine.context.caches[0].capacity}
        run = TracedRun(name, sizes, recorder.events)
        drawn = draw_all(run)
        _write_all(directory, drawn)
    session.console.note(f"{len(drawn)} diagrams in {directory}")


@contextlib.contextmanager
def _made_directory(directory: Path) -> Iterator[None]:
    """Make a directory and those that it lies in; what is empty of them at the end is removed."""
    missing = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise _refusal(directory, error) from None
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()


def _write_all(directory: Path, drawn: Mapping[str, str]) -> None:
    """Write all files or none: each gets its name once the last one is on the disk."""
    try:
        with tempfile.TemporaryDirectory(prefix=".llama-bolts-", dir=directory) as unfinished:
            for file, text in drawn.items():
                Path(unfinished, file).write_text(text, encoding="utf-8")
            for file in drawn:
                Path(unfinished, file).replace(directory / file)
    except OSError as error:
        raise _refusal(directory, error) from None


def _refusal(directory: Path, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"{directory}: --diagrams: expected a writable directory, got {reason}")
