"""Mutants of a module: its source with one small fault in it."""

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_OPEN = (ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Raise)
# Inside these is the text of an error, or a type; of a raise the removal alone is a fault.
_CLOSED = (ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.arguments)


@dataclass(frozen=True)
class Mutant:
    """One fault of a module."""

    path: Path
    number: int  # of the module's faults, in the order of its lines
    line: int
    column: int
    fault: str

    @property
    def label(self) -> str:
        """Name it."""
        return f"{self.path}:{self.line}:{self.column}: {self.fault}"

    @property
    def source(self) -> str:
        """The whole module with it."""
        tree = ast.parse(self.path.read_text())
        for _ in itertools.islice(_faults(tree), self.number + 1):
            source = tree
        return ast.unparse(source)


def mutants_of(path: Path) -> list[Mutant]:
    """Find all mutants of a module."""
    faults = _faults(ast.parse(path.read_text()))
    return [Mutant(path, number, *found) for number, found in enumerate(faults)]


def _faults(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Put each fault in, one after another; yield its place and what it is while it is there."""
    for node in list(_places(tree)):
        if not isinstance(node, _OPEN):
            continue
        before = ast.unparse(node)[:60]
        for fault in _changes(tree, node):
            yield node.lineno, node.col_offset, f"{before} -> {fault[:60]}"


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over the nodes that a fault may be put in: not documentation, types and decorators."""
    beside = [*getattr(node, "decorator_list", ()), getattr(node, "returns", None)]
    for child in ast.iter_child_nodes(node):
        if child in beside:
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "__all__":
            continue
        yield child
        if isinstance(child, ast.AnnAssign) and child.value is not None:
            yield from (child.value, *_places(child.value))
        elif not isinstance(child, _CLOSED):
            yield from _places(child)


def _changes(tree: ast.Module, node: ast.AST) -> Iterator[str]:
    """Put each fault of a node in and take it out again; yield what stands there meanwhile."""
    if isinstance(node, ast.Compare):
        for position, operator in enumerate(node.ops):
            node.ops[position] = _COMPARISONS[type(operator)]()
            yield ast.unparse(node)
            node.ops[position] = operator
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        before = node.op
        other = {**_ARITHMETIC, ast.And: ast.Or, ast.Or: ast.And}.get(type(before))
        if other is not None:
            node.op = other()
            yield ast.unparse(node)
            node.op = before
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        operand = node.operand
        node.operand = ast.UnaryOp(ast.Not(), operand)
        yield ast.unparse(node)
        node.operand = operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        value = node.value
        for other in (not value,) if isinstance(value, bool) else (value + 1, value - 1):
            node.value = other
            yield str(other)
        node.value = value
    elif isinstance(node, ast.Raise):
        block, position = next(
            (block, block.index(node)) for block in _blocks(tree) if node in block
        )
        block[position] = ast.Pass()
        yield "pass"
        block[position] = node


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block
