"""Where a symbol or a section is: found by reading the sources and the pages, never stored."""

import ast
import re
import sys
from functools import cache
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parent.parent
# The packages that only report: a line of theirs tells a reader nothing about the run.
_REPORTING = (f"{PACKAGE / 'trace'}/", f"{PACKAGE / 'ml'}/")
_COMMENT = re.compile(r"<!--.*-->")  # the marks of what is generated and run


def calling_line() -> str:
    """Return the file and the line, outside of the trace and the ops, that led to this call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_REPORTING):
        frame = frame.f_back
    return "" if frame is None else f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"


@cache
def shown_path(file: str) -> str:
    """Return the path of a module as it stands in the repository; of a file elsewhere its name."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE.parent).as_posix()
    return path.name


def line_of(file: Path, symbol: str) -> int | None:
    """Return the line of a symbol in a Python file, from 1; None where it has none.

    Args:
        file: the module.
        symbol: a function, a class, a method such as `LlamaAttention.forward`, a name that the
            module or a class assigns, or a stage mark such as `mark(13)`.
    """
    found = _places(file).get(symbol)
    return found and found[0]


def line_of_stage(file: Path, function: str, number: int) -> int | None:
    """Return the line of a stage's mark, if its function holds it, or else of the function."""
    return line_of(file, f"{function}: mark({number})") or line_of(file, function)


def source_of(file: Path, symbol: str) -> tuple[int, str] | None:
    """Return the first line of a symbol, as `line_of` knows it, and its text; None without one."""
    found = _places(file).get(symbol)
    if found is None:
        return None
    first, last = found
    return first, "\n".join(file.read_text(encoding="utf-8").split("\n")[first - 1 : last])


@cache
def _places(file: Path) -> dict[str, tuple[int, int]]:
    """Return the first and the last line of each symbol of a file."""
    places: dict[str, tuple[int, int]] = {}
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:  # installed without its sources
        return places
    _collect(ast.parse(text).body, "", places)
    return places


def _collect(body: list[ast.stmt], prefix: str, places: dict[str, tuple[int, int]]) -> None:
    """Add the symbols of a module or a class."""
    for node in body:
        place = node.lineno, node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef):
            places[prefix + node.name] = place
            _collect(node.body, f"{prefix}{node.name}.", places)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            places[prefix + node.name] = place
            _collect_marks(node, prefix + node.name, places)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (target.id for target in targets if isinstance(target, ast.Name))
            places |= {prefix + name: place for name in names}


def _collect_marks(function: ast.AST, name: str, places: dict[str, tuple[int, int]]) -> None:
    """Add the stage marks of a function, as `mark(13)` and as `LlamaAttention.eager: mark(13)`."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="mark"), args=[ast.Constant(value=int(stage)), *_]):
                places[f"{name}: mark({stage})"] = node.lineno, node.lineno
                places.setdefault(f"mark({stage})", (node.lineno, node.lineno))


def find_page(name: str) -> Path | None:
    """Return a file of `docs/` or `diagrams/`, installed with the package or in the checkout."""
    places = (PACKAGE / name, PACKAGE.parent / name)
    return next((place for place in places if place.is_file()), None)


def section_of(page: Path, heading: str) -> str:
    """Return the section below `## heading` of a page, without comments; empty if there is none."""
    _, _, rest = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    lines = rest.partition("\n## ")[0].split("\n")
    return "\n".join(line for line in lines if not _COMMENT.fullmatch(line)).strip()
