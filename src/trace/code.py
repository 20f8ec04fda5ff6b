"""Where a symbol stands in the source files: its line is found by reading them, never stored."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def line_of(file: Path, symbol: str) -> int | None:
    """Returns the line of a symbol in a Python file, from 1; None where it has none.

    Args:
        file: the module.
        symbol: a function, a class, a method such as `LlamaAttention.forward`, a name that the
            module or a class assigns, or a stage mark such as `mark(13)`.
    """
    return _lines(file).get(symbol)


def line_of_stage(file: Path, function: str, number: int) -> int | None:
    """Returns the line of a stage's mark, if its function holds it, or else of the function."""
    lines = _lines(file)
    return lines.get(f"{function}: mark({number})", lines.get(function))


@cache
def _lines(file: Path) -> dict[str, int]:
    lines: dict[str, int] = {}
    _collect(ast.parse(file.read_text(encoding="utf-8")).body, "", lines)
    return lines


def _collect(body: list[ast.stmt], prefix: str, lines: dict[str, int]) -> None:
    """Adds the symbols of a module or a class."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            lines[prefix + node.name] = node.lineno
            _collect(node.body, f"{prefix}{node.name}.", lines)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines[prefix + node.name] = node.lineno
            _collect_marks(node, prefix + node.name, lines)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    lines[prefix + target.id] = node.lineno


def _collect_marks(function: ast.AST, name: str, lines: dict[str, int]) -> None:
    """Adds the stage marks of a function, as `mark(13)` and as `LlamaAttention.eager: mark(13)`."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="mark"), args=[ast.Constant(value=int(stage)), *_]):
                lines[f"{name}: mark({stage})"] = node.lineno
                lines.setdefault(f"mark({stage})", node.lineno)
