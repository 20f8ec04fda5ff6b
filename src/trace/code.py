"""Locate symbols in the source files and sections in the documentation pages."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parent.parent
# Packages that `calling_line` skips, because their lines do not explain the run.
_REPORTING = (f"{PACKAGE / 'trace'}/", f"{PACKAGE / 'ml'}/")
_COMMENT = re.compile(r"<!--.*-->")  # marks generated and executed blocks


def calling_line() -> str:
    """Return the file and line of the innermost caller outside `trace` and `ml`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_REPORTING):
        frame = frame.f_back
    return (
        ""
        if frame is None
        else f"{display_path(frame.f_code.co_filename)}:{frame.f_lineno}"
    )


@cache
def display_path(file: str) -> str:
    """Return a module's path within the repository, or just the name of another file."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE.parent).as_posix()
    return path.name


@cache
def symbols_of(file: Path) -> dict[str, tuple[int, str]]:
    """Return the first line number and the source of each symbol in a file.

    Examples of symbols are `Class.method`, `mark(13)` and `function: mark(13)`. If the
    file does not exist, the result is empty.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:  # the package is installed without sources
        return {}
    symbols = _symbols(ast.parse(text).body, "")
    lines = text.split("\n")
    return {
        name: (node.lineno, "\n".join(lines[node.lineno - 1 : node.end_lineno]))
        for name, node in symbols
    }


def _symbols(
    body: list[ast.stmt], prefix: str
) -> Iterator[tuple[str, ast.stmt | ast.expr]]:
    """Yield the name and node of each symbol in the body of a module or class."""
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
    """Yield the stage marks in a function, under two names each."""
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Name(id="mark"), args=[ast.Constant(value=int(stage)), *_]
            ):
                yield f"{name}: mark({stage})", node
                yield f"mark({stage})", node


def find_page(name: str) -> Path | None:
    """Return the path of a file in `docs/` or `diagrams/`, or None if it is missing.

    The file is searched in the installed package and in the checkout.
    """
    paths = (PACKAGE / name, PACKAGE.parent / name)
    return next((path for path in paths if path.is_file()), None)


def section_of(page: Path | None, heading: str) -> str:
    """Return the section below `## heading` without comments, or an empty string."""
    text = "" if page is None else page.read_text(encoding="utf-8")
    lines = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].split("\n")
    return "\n".join(line for line in lines if not _COMMENT.fullmatch(line)).strip()
