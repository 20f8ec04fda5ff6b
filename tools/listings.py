"""Read the code of a stage from its source, for the listings of chapter 14."""

import ast
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from .pages import PageError


def stage_code(
    file: Path,
    function: str,
    start: int,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> tuple[str, bool]:
    """Return the code of a stage without checks of errors, and whether it is complete.

    Args:
        file: The file of the stage.
        function: The qualified name of the function that contains the stage.
        start: The index of its first line, which is always shown.
        only: The beginnings of the statements to show, all by default. A statement of
            another function is chosen as `LlamaAttention.eager: keys, values =`.
        without: The beginnings of statements to leave out.

    Raises:
        PageError: If a beginning in `only` does not select exactly one statement, or one
            in `without` selects none.
    """
    lines = file.read_text(encoding="utf-8").split("\n")
    whole = range(start, _end_of_stage(lines, start))
    functions = _functions(file)
    parts: list[range] = [whole]
    places = [""]  # the name of the function, for each part of another function
    if only:
        parts = [range(start, start + 1)]
        for choice in only:
            name, _, beginning = choice.rpartition(": ")
            inside = None if name else set(whole)
            node = functions.get(name or function)
            statements = _statements(node, lines, beginning, inside) if node else []
            if len(statements) != 1:
                expected = f"expected one statement that begins with {beginning!r}"
                raise PageError(f"generated: stage: {expected}, got {len(statements)}")
            parts.append(_lines_of(statements[0], lines))
            places.append(name)
    kept = {line for part in parts for line in part}
    removed: set[int] = set()
    indented: list[int] = []  # the lines inside error handling, once for each level
    for node in functions.values():
        for statement in _statements(node, lines, "", kept):
            hidden, body = _error_handling(statement)
            removed |= hidden
            indented += body
    for beginning in without:
        statements = [
            statement
            for node in functions.values()
            for statement in _statements(node, lines, beginning, kept)
        ]
        if not statements:
            expected = f"expected a statement that begins with {beginning!r}"
            raise PageError(f"generated: stage: {expected}, got none")
        removed |= {n for x in statements for n in _lines_of(x, lines)}
    is_function = lines[start].lstrip().startswith("def ")
    shown: list[str] = []
    for part, place in zip(parts, places, strict=True):
        kept_lines = [line for line in part if line not in removed]
        texts = [lines[line][4 * indented.count(line) :] for line in kept_lines]
        text = textwrap.dedent("\n".join(texts))
        shown += [f"\n# In {place}:"] if place else []
        shown.append(textwrap.indent(text, "    ") if is_function and shown else text)
    code = re.sub(
        r'^( +)"""(.|\n)*?"""\n+', "", "\n".join(shown), count=1, flags=re.MULTILINE
    )
    return re.sub(r"\n{3,}", "\n\n", code).strip(), not only and not removed


def _functions(file: Path) -> dict[str, ast.AST]:
    """Return the functions and methods of a file by their qualified names."""
    functions: dict[str, ast.AST] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            methods = (x for x in node.body if isinstance(x, ast.FunctionDef))
            functions |= {f"{node.name}.{x.name}": x for x in methods}
    return functions


def _statements(
    function: ast.AST, lines: Sequence[str], beginning: str, inside: set[int] | None
) -> list[ast.stmt]:
    """Return the statements of a function that begin with a text."""
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
        and (inside is None or node.lineno - 1 in inside)
        and lines[node.lineno - 1].lstrip().startswith(beginning)
    ]


def _lines_of(statement: ast.stmt, lines: Sequence[str]) -> range:
    """Return the indices of the lines of a statement and of the comment above it."""
    first = statement.lineno - 1
    while lines[first - 1].lstrip().startswith("# "):
        first -= 1
    return range(first, statement.end_lineno or statement.lineno)


def _error_handling(statement: ast.stmt) -> tuple[set[int], set[int]]:
    """Return the lines that only handle errors, and the lines inside of them."""
    whole = set(range(statement.lineno - 1, statement.end_lineno or statement.lineno))
    is_check = isinstance(statement, ast.Assert) or (
        isinstance(statement, ast.If)
        and isinstance(statement.body[-1], ast.Raise)
        and not statement.orelse
    )
    if is_check:
        return whole, set()
    is_try = isinstance(statement, ast.Try) and all(
        isinstance(handler.body[-1], ast.Raise) for handler in statement.handlers
    )
    is_with = isinstance(statement, ast.With) and all(
        "declared_lack_of_memory" in ast.unparse(item) for item in statement.items
    )
    if is_try or is_with:
        assert isinstance(statement, ast.Try | ast.With)
        last = statement.body[-1]
        body = set(range(statement.body[0].lineno - 1, last.end_lineno or last.lineno))
        return whole - body, body
    return set(), set()


def _end_of_stage(lines: list[str], start: int) -> int:
    """Return the line after a stage's code: the next mark, or the end of the function."""
    indent = " " * (len(lines[start]) - len(lines[start].lstrip()))
    is_function = lines[start].startswith(f"{indent}def ")
    inside = rf"{indent}[ )]" if is_function else rf"{indent}(?!mark\()"
    for number, line in enumerate(lines[start + 1 :], start + 1):
        if line and not re.match(inside, line):
            return number
    return len(lines)
