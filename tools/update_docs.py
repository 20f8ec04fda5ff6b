"""Writes what runs and code say into the pages: `python -m tools.update_docs`.

Links to lines of code, generated blocks, what the examples print, the diagrams and the plots.
`--check` writes nothing, and names what is not current.
"""

import argparse
import contextlib
import difflib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import chapter_plots, rope_plots
from .diagrams import FOLDER, current_diagrams
from .examples import KINDS, run_examples
from .generated import regenerated
from .links import corrected
from .pages import PageError, documents, name_of
from .producers import PRODUCERS


def current_text(page: Path) -> str:
    """Returns a page with its links and its generated blocks as they should be."""
    return regenerated(page, corrected(page), PRODUCERS)


def with_outputs(page: Path, text: str, allowed: frozenset[str]) -> str:
    """Returns a page with what its examples print; what holds `...` and fits stays.

    Raises:
        PageError: an example prints, and no ```text block follows it.
    """
    lines = text.split("\n")
    for outcome in reversed(run_examples(text, name_of(page), allowed)):
        if outcome.is_as_shown:
            continue
        output = outcome.example.output
        if output is None:
            line = outcome.example.code.line
            raise PageError(
                f"{name_of(page)}:{line}: example: expected a ```text block after it, "
                f"it prints {outcome.printed!r}"
            )
        printed = [line.rstrip() for line in outcome.printed.rstrip().split("\n")]
        lines[output.line - 1 : output.end - 1] = printed
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Updates or checks the pages; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.update_docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if not current")
    parser.add_argument(
        "--run", action="append", choices=KINDS, default=[], help="examples to run as well"
    )
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all")
    options = parser.parse_args(arguments)
    pages = [page.resolve() for page in options.pages] or documents()
    stale = [] if options.pages else _stale_pictures(write=not options.check)
    for page in pages:
        try:
            with _scratch_directory():
                text = with_outputs(page, current_text(page), frozenset(options.run))
        except PageError as error:
            print(error, file=sys.stderr)
            stale.append(page)
            continue
        before = page.read_text(encoding="utf-8")
        if text == before:
            continue
        stale.append(page)
        if options.check:
            sys.stdout.writelines(_difference(name_of(page), before, text))
        else:
            page.write_text(text, encoding="utf-8")
            print(f"{name_of(page)}: written")
            stale.pop()
    return 1 if stale else 0


def current_pictures() -> dict[Path, str]:
    """Returns the text of each committed diagram and plot as it should be, by its file."""
    drawn = {FOLDER / name: text for name, text in current_diagrams().items()}
    for plots in (chapter_plots, rope_plots):
        drawn |= {plots.FOLDER / name: draw() for name, draw in plots.PLOTS.items()}
    return drawn


def _stale_pictures(*, write: bool) -> list[Path]:
    """Writes the pictures that are not current, or returns them."""
    drawn = current_pictures()
    stale = [
        path
        for path, text in drawn.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(drawn[path], encoding="utf-8")
        print(f"{name_of(path)}: {'written' if write else 'not current'}")
    return [] if write else stale


@contextlib.contextmanager
def _scratch_directory() -> Iterator[None]:
    """Runs what it holds in an empty directory, which what the examples write goes into."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)


def _difference(name: str, before: str, after: str) -> Iterator[str]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return difflib.unified_diff(old, new, f"{name} (as it is)", f"{name} (current)")


if __name__ == "__main__":
    sys.exit(main())
