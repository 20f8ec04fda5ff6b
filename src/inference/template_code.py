"""A Jinja code generator for chat templates that calls methods of the environment.

Jinja's own code generator joins, slices, compares and writes values with Python functions
and operators, which do not preserve the marks on strings and do not count steps. The
generator in this module calls methods of the environment instead.
"""

from collections.abc import Iterator
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.lexer import Token, TokenStream

from .template_budget import TemplateBoundError

# Maximum number of tokens in a template. The longest known template has 2,600. Python
# uses up to 4 KB of memory per token to compile the generated code.
_MOST_TOKENS = 12_000
_DEEPEST = 24  # maximum nesting depth of statements (Python allows 20 nested loops)
_NODES_PER_STEP = 8  # syntax tree nodes in a body that one step pays for
_LONGEST_WORD = 64  # maximum length of a constant whose comparison is free

# Internal filters. Templates cannot use them, because their names contain spaces.
_PASSES = "passes of a loop"
_SPEND = "steps of a body"

_OPERATORS = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<="}
_OPERATORS |= {"in": "in", "notin": "not in"}


class TemplateCode(CodeGenerator):
    """Generate code that calls the environment instead of Python functions."""

    def _write_call(self, function: str, node: nodes.Node, frame: Frame) -> None:
        self.write(f"environment.{function}(")
        self.visit(node, frame)
        self.write(")")

    def _output_child_to_const(self, node: Any, frame: Frame, finalize: Any) -> str:
        """Evaluate constants at run time, where their steps are counted."""
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, _node: Any, _frame: Frame, _finalize: Any) -> None:
        self.write("environment.text_of(")

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        """Write code for a filter, or for an internal filter that counts steps."""
        if node.name == _SPEND:
            self._write_call("spend", node.args[0], frame)
        elif node.name == _PASSES:
            self.write("environment.passes(")
            self.visit(node.node, frame)  # type: ignore[arg-type]
            self.write(", ")
            self.visit(node.args[0], frame)
            self.write(")")
        else:
            super().visit_Filter(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write code for the operator `~`."""
        self.write("environment.concat((")
        for operand in node.nodes:
            self._write_call("text_of", operand, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Write code for an element or a slice."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(")
        self.visit(node.node, frame)
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            self.write(", ")
            self.visit(nodes.Const(None) if bound is None else bound, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """Write code for a list."""
        self.write("environment.new_container(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """Write code for a tuple."""
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.new_container(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Write code for a dict."""
        self.write("environment.new_container(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Write code for a comparison."""
        self.write("(")
        self._visit_operand_value(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        """Write code for a comparison operator and its right operand."""
        self.write(f" {_OPERATORS[node.op]} ")
        self._visit_operand_value(node.expr, frame)

    def _visit_operand_value(self, node: nodes.Expr, frame: Frame) -> None:
        """Write code for a comparison operand. Short constants do not cost any steps."""
        if isinstance(node, nodes.Const) and len(str(node.value)) <= _LONGEST_WORD:
            self.visit(node, frame)
        else:
            self._write_call("operand", node, frame)


class TemplateExtension(jinja2.ext.Extension):
    """Limit the length of templates, and support the statement `{% generation %}`.

    This statement marks answers for training. Here, its body is rendered like any other
    text. As in transformers, it has its own scope for variables.
    """

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the tokens of a template, or raise an error if there are too many."""
        for index, token in enumerate(stream):
            if index >= _MOST_TOKENS:
                raise TemplateBoundError(
                    f"it must have at most {_MOST_TOKENS} words and signs"
                )
            yield token

    def parse(self, parser: Any) -> nodes.Node:
        """Parse the body of `{% generation %}`."""
        line = next(parser.stream).lineno
        body: list[nodes.Node] = parser.parse_statements(
            ("name:endgeneration",), drop_needle=True
        )
        return nodes.Scope(body, lineno=line)


def count_steps(node: nodes.Node, depth: int = 0) -> int:
    """Add step counting to the loops, macros and blocks in a syntax tree.

    Returns:
        The number of nodes in the tree.

    Raises:
        TemplateBoundError: If statements are nested too deeply.
    """
    if isinstance(node, nodes.Stmt):
        depth += 1
        if depth > _DEEPEST:
            raise TemplateBoundError(f"its statements must be at most {_DEEPEST} deep")
    size = 1
    test_size = 0
    for child in node.iter_child_nodes():
        child_size = count_steps(child, depth)
        size += child_size
        if isinstance(node, nodes.For) and child is node.test:
            test_size = child_size
    steps = 1 + size // _NODES_PER_STEP
    if isinstance(node, nodes.For):
        if node.test is not None:
            node.test = nodes.And(_spend(1 + test_size // _NODES_PER_STEP), node.test)
        # A recursive loop can be called from its own body with other values.
        passes = nodes.Const(1 if node.recursive else steps)
        node.iter = nodes.Filter(node.iter, _PASSES, [passes], [], None, None)
    if isinstance(node, nodes.Macro | nodes.CallBlock | nodes.Block) or (
        isinstance(node, nodes.For) and node.recursive
    ):
        node.body.insert(0, nodes.ExprStmt(_spend(steps), lineno=node.lineno))
    return size


def _spend(steps: int) -> nodes.Filter:
    """Return an expression that deducts steps from the budget and evaluates to True."""
    return nodes.Filter(nodes.Const(True), _SPEND, [nodes.Const(steps)], [], None, None)
