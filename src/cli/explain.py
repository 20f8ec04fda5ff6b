"""`--explain N`: the section of a chapter that explains a stage."""

import re
from pathlib import Path

from ..trace import STAGES, Stage
from ..trace.code import PACKAGE
from .console import Console
from .errors import UsageError

_COMMENT = re.compile(r"<!-- .* -->")  # the marks of what is generated and run


def report_stage(console: Console, number: int) -> None:
    """Write the section of a stage, and where its diagram and its code are.

    Args:
        console: takes the section, rendered for a terminal, as it is for anything else.
        number: of the stage, from 1.

    Raises:
        UsageError: the chapter is not installed, or has no such section.
    """
    stage = STAGES[number]
    page = find_file(stage.chapter.partition("#")[0])
    console.report_markdown(section(page, stage).rstrip())
    code = stage.code.partition(":")
    file = PACKAGE.parent / code[0]
    console.report_line()
    for name, place in (
        ("chapter", f"{page}#{stage.chapter.partition('#')[2]}"),
        ("diagram", str(find_file(stage.diagram))),
        ("code", f"{file}{code[1]}{code[2]} {stage.function}"),
    ):
        console.report_line(f"{name + ':':<9}{place}")


def find_file(name: str) -> Path:
    """Return a file of `docs/` or `diagrams/`: in the checkout, or as installed with the package.

    Raises:
        UsageError: it is at neither place; the text names both.
    """
    places = (PACKAGE / name, PACKAGE.parent / name)
    for place in places:
        if place.is_file():
            return place
    raise UsageError(f"--explain: expected {places[0]} or {places[1]}, got neither")


def section(page: Path, stage: Stage) -> str:
    """Return the heading of a stage and all below it, up to the next heading of its level.

    Raises:
        UsageError: the page has no such heading.
    """
    lines = page.read_text(encoding="utf-8").split("\n")
    headings = _headings(lines)
    for at, (number, level, text) in enumerate(headings):
        if text == stage.heading:
            after = (n for n, other, _ in headings[at + 1 :] if other <= level)
            shown = lines[number : next(after, len(lines))]
            return "\n".join(line for line in shown if not _COMMENT.fullmatch(line))
    raise UsageError(f"{page}: --explain: expected a heading {stage.heading!r}, got none")


def _headings(lines: list[str]) -> list[tuple[int, int, str]]:
    """Return the index, the level and the text of each heading; `#` in a block begins none."""
    found = []
    fence = ""
    for number, line in enumerate(lines):
        opening = re.match(r"```+|~~~+", line)
        if fence:
            fence = "" if line.rstrip() == fence else fence
        elif opening is not None:
            fence = opening[0]
        elif heading := re.match(r"(#{1,6}) +(.+?) *#*$", line):
            found.append((number, len(heading[1]), heading[2]))
    return found
