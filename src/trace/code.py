"""Where a symbol or a section is: found by reading the sources and the pages, never
stored.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parent.parent
# The packages that only report: a line of theirs tells a reader nothing about the run.
_REPORTING = (f"{PACKAGE / 'trace'}/", f"{PACKAGE / 'ml'}/")
_COMMENT = re.compile(r"<!--.*-->")  # the marks of what is generated and run


def calling_line() -> str:
    """Return the file and the line, outside of the trace and the ops, that led to this
    call.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_REPORTING):
        frame = frame.f_back
    return (
        ""
        if frame is None
        else f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"
    )


@cache
def shown_path(file: str) -> str:
    """Return the path of a module as it stands in the repository; of a file elsewhere its
    name.
    """
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE.parent).as_posix()
    return path.name


@cache
def symbols_of(file: Path) -> dict[str, tuple[int, str]]:
    """Return the first line and the text of each symbol of a file, if it is there.

    A symbol is such as `Class.method`, `mark(13)` or `function: mark(13)`.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:  # installed without its sources
        return {}
    found = _symbols(ast.parse(text).body, "")
    lines = text.split("\n")
    return {
        name: (node.lineno, "\n".join(lines[node.lineno - 1 : node.end_lineno]))
        for name, node in found
    }


def _symbols(
    body: list[ast.stmt], prefix: str
) -> Iterator[tuple[str, ast.stmt | ast.expr]]:
    """Yield the symbols of a module or a class."""
    for node in body:
        match node:
            case ast.ClassDef(name=name):
                yield prefix + name, node
                yield from _symbols(node.body, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name, node
                yield from _marks(node, prefix + name)
            case (
                ast.Assign(targets=[ast.Name(id=name)])
                | ast.AnnAssign(target=ast.Name(id=name))
            ):
                yield prefix + name, node


def _marks(function: ast.AST, name: str) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Name(id="mark"), args=[ast.Constant(value=int(stage)), *_]
            ):
                yield f"{name}: mark({stage})", node
                yield f"mark({stage})", node


def find_page(name: str) -> Path | None:
    """Return a file of `docs/` or `diagrams/`, installed with the package or in the
    checkout.
    """
    places = (PACKAGE / name, PACKAGE.parent / name)
    return next((place for place in places if place.is_file()), None)


def section_of(page: Path | None, heading: str) -> str:
    """Return the section below `## heading` of a page, without comments; empty if there
    is none.
    """
    text = "" if page is None else page.read_text(encoding="utf-8")
    lines = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].split("\n")
    return "\n".join(line for line in lines if not _COMMENT.fullmatch(line)).strip()
