"""Write what runs and code say into the pages: `python -m tools.update_docs`.

Links to lines of code, generated blocks, what the examples print, the diagrams, the plots, and the
page of the explorer.
`--check` writes nothing, and names what is not current. Plots need the `docs` extra.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .examples import KINDS, run_examples
from .explorer_page import PAGE, current_page
from .pages import ROOT, PageError, documents, name_of
from .plots import current_plots
from .producers import current_text
from .runs import current_diagrams


def main(arguments: Sequence[str] | None = None) -> int:
    """Update or check the pages; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.update_docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if not current")
    parser.add_argument(
        "--run", action="append", choices=KINDS, default=[], help="examples to run as well"
    )
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all")
    options = parser.parse_args(arguments)
    has_failed = False
    for file, text in _current_files(options.pages, frozenset(options.run)):
        name = name_of(file)
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        if isinstance(text, PageError):
            has_failed = True
            print(text, file=sys.stderr)
        elif text != before and options.check:
            has_failed = True
            print(f"{name}: not current")
        elif text != before:
            file.write_text(text, encoding="utf-8")
            print(f"{name}: written")
    return 1 if has_failed else 0


def _current_files(
    pages: Sequence[Path], allowed: frozenset[str]
) -> Iterator[tuple[Path, str | PageError]]:
    """Yield each file with its text as it should be, or with what is wrong with it.

    The page of the explorer quotes chapter 14, so it comes when the chapters are written.
    """
    if not pages:
        yield from current_pictures().items()
    for page in [page.resolve() for page in pages] or documents():
        try:
            with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
                text = with_outputs(page, current_text(page), allowed)
            yield page, text
        except PageError as error:
            yield page, error
    if not pages:
        yield PAGE, current_page()


def current_pictures() -> dict[Path, str]:
    """Return the text of each committed diagram and plot as it should be, by its file."""
    diagrams = {ROOT / "diagrams" / name: text for name, text in current_diagrams().items()}
    plots = {ROOT / "docs" / "plots" / name: text for name, text in current_plots().items()}
    return diagrams | plots


def with_outputs(page: Path, text: str, allowed: frozenset[str]) -> str:
    """Return a page with what its examples print; what holds `...` and fits stays."""
    lines = text.split("\n")
    for example in reversed(run_examples(text, name_of(page), allowed)):
        if example.is_as_shown:
            continue
        if example.output is None:
            raise PageError(
                f"{name_of(page)}:{example.code.line}: example: expected a ```text block after "
                f"it, it prints {example.printed!r}"
            )
        printed = [line.rstrip() for line in example.printed.rstrip().split("\n")]
        lines[example.output.line - 1 : example.output.end - 1] = printed
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
