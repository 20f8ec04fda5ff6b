"""Mutants of a module: its source with one small fault in it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

_SWAPPED: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Inside these is the text of an error, or a type; of a raise the removal alone is a
# fault.
_CLOSED = (ast.Raise, ast.JoinedStr, ast.arguments)
_BESIDE = {"annotation", "returns", "decorator_list"}


@dataclass(frozen=True)
class Mutant:
    path: Path
    line: int
    start: int  # of the bytes of the module that are replaced
    stop: int
    before: str
    after: str

    @property
    def label(self) -> str:
        return f"{self.path}:{self.line}: {self.before[:60]} -> {self.after[:60]}"

    @property
    def source(self) -> bytes:
        """The whole module with it."""
        source = self.path.read_bytes()
        return source[: self.start] + self.after.encode() + source[self.stop :]


def mutants_of(path: Path) -> list[Mutant]:
    source = path.read_bytes()
    lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    found = []
    for node in _places(ast.parse(source)):
        for after in _changes(node):
            start = lines[node.lineno - 1] + node.col_offset
            stop = lines[node.end_lineno - 1] + node.end_col_offset
            before = source[start:stop].decode()
            found.append(Mutant(path, node.lineno, start, stop, before, after))
    return found


def _places(node: ast.AST) -> Iterator[Any]:
    """Walk over the nodes that a fault may be put in: not documentation, types and
    decorators.
    """
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_export = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    if is_text or is_export:
        return
    yield node
    if not isinstance(node, _CLOSED):
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if name not in _BESIDE and isinstance(child, ast.AST):
                    yield from _places(child)


def _changes(node: ast.AST) -> Iterator[str]:
    """Yield what may take the place of a node."""
    match node:
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                ops = [*node.ops[:at], _SWAPPED[type(operator)](), *node.ops[at + 1 :]]
                yield f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
        case ast.BoolOp() if other := _SWAPPED.get(type(node.op)):
            yield f"({ast.unparse(ast.BoolOp(other(), node.values))})"
        case ast.BinOp() if other := _SWAPPED.get(type(node.op)):
            yield f"({ast.unparse(ast.BinOp(node.left, other(), node.right))})"
        case ast.UnaryOp(ast.Not()):
            yield f"(not {ast.unparse(node)})"
        case ast.Constant(bool()):
            yield str(not node.value)
        case ast.Constant(int()):
            yield from (str(node.value + 1), str(node.value - 1))
        case ast.Raise():
            yield "pass"
