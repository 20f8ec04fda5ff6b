"""Update the generated parts of the documentation: `python -m tools.update_docs`.

These are links to lines of code, generated blocks, the output of examples, the diagrams,
the plots, the sessions in `notebooks/`, and the explorer's page. `--check` writes
nothing, and lists outdated files. Plots need the `docs` extra.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .examples import KINDS, run_examples
from .notebooks import current_notebooks
from .pages import ROOT, PageError, documents, name_of
from .plots import current_plots
from .producers import current_text
from .runs import PAGE, current_diagrams, current_page


def main(arguments: Sequence[str] | None = None) -> int:
    """Update or check the pages, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.update_docs", description=__doc__
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 if not current"
    )
    parser.add_argument(
        "--run",
        action="append",
        choices=KINDS,
        default=[],
        help="examples to run as well",
    )
    parser.add_argument(
        "pages", nargs="*", type=Path, metavar="PAGE", help="default: all"
    )
    options = parser.parse_args(arguments)
    failures = 0
    for page in [page.resolve() for page in options.pages] or documents():
        try:
            with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
                text = with_outputs(page, current_text(page), frozenset(options.run))
            failures += _update(page, text, options.check)
        except PageError as error:
            failures += 1
            print(error, file=sys.stderr)
    if not options.pages:
        for file, text in (current_pictures() | current_notebooks()).items():
            failures += _update(file, text, options.check)
        failures += _update(PAGE, current_page(), options.check)  # it quotes chapter 14
    return 1 if failures else 0


def _update(file: Path, text: str, check: bool) -> bool:
    """Write an outdated file, or report it; return whether it is still outdated."""
    is_stale = not file.exists() or file.read_text(encoding="utf-8") != text
    if is_stale:
        print(f"{name_of(file)}: {'not current' if check else 'written'}")
        if not check:
            file.write_text(text, encoding="utf-8")
    return is_stale and check


def current_pictures() -> dict[Path, str]:
    """Return the current text of each diagram and plot, by file."""
    diagrams = {
        ROOT / "diagrams" / name: text for name, text in current_diagrams().items()
    }
    plots = {
        ROOT / "docs" / "plots" / name: text for name, text in current_plots().items()
    }
    return diagrams | plots


def with_outputs(page: Path, text: str, allowed: frozenset[str]) -> str:
    """Return a page with the output of its examples; text that matches `...` is kept."""
    lines = text.split("\n")
    for example in reversed(run_examples(text, name_of(page), allowed)):
        if example.is_as_shown:
            continue
        if example.output is None:
            raise PageError(
                f"{name_of(page)}:{example.code.line}: example: expected a ```text block "
                f"after it, it prints {example.printed!r}"
            )
        printed = [line.rstrip() for line in example.printed.rstrip().split("\n")]
        lines[example.output.line - 1 : example.output.end - 1] = printed
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
