"""The code of a chat template: Python code from Jinja, with calls of the environment.

Jinja generates code that joins, slices, compares and writes values with functions and
operators of Python, which neither keep the marks of texts nor count steps. This generator
calls the environment instead.
"""

from collections.abc import Iterator
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.lexer import Token, TokenStream

from .template_budget import TemplateBoundError

# Words, texts and signs of a template. The longest known template has 2,600. Python uses
# up to 4 KB for each while it compiles the code of a template.
_MOST_TOKENS = 12_000
_DEEPEST = 24  # nesting depth of statements; Python itself allows 20 loops
_NODES_PER_STEP = 8  # nodes of a body that one step pays for
_LONGEST_WORD = 64  # characters of a constant that is compared without cost

# Filters that no template can name, because their names contain spaces.
_PASSES = "passes of a loop"
_SPEND = "steps of a body"

_OPERATORS = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<="}
_OPERATORS |= {"in": "in", "notin": "not in"}


class TemplateCode(CodeGenerator):
    """Generates code that calls the environment instead of functions of Python."""

    def _write_call(self, function: str, node: nodes.Node, frame: Frame) -> None:
        self.write(f"environment.{function}(")
        self.visit(node, frame)
        self.write(")")

    def _output_child_to_const(self, node: Any, frame: Frame, finalize: Any) -> str:
        """Compute no constant at compile time, because that would not be counted."""
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, _node: Any, _frame: Frame, _finalize: Any) -> None:
        self.write("environment.text_of(")

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        """Write code for a filter, or for the accounting of steps."""
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
        """Write code for `~`."""
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
        """Write code for an object."""
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
        """Write code for one operator of a comparison and its right operand."""
        self.write(f" {_OPERATORS[node.op]} ")
        self._visit_operand_value(node.expr, frame)

    def _visit_operand_value(self, node: nodes.Expr, frame: Frame) -> None:
        """Write an operand of a comparison; a short constant of the template is free."""
        if isinstance(node, nodes.Const) and len(str(node.value)) <= _LONGEST_WORD:
            self.visit(node, frame)
        else:
            self._write_call("operand", node, frame)


class TemplateExtension(jinja2.ext.Extension):
    """Limits the length of templates, and reads `{% generation %}`.

    That statement marks answers for training; here its body is simply written. Variables
    that the body sets end with it, as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Pass on the words of a template, up to their limit."""
        for index, token in enumerate(stream):
            if index >= _MOST_TOKENS:
                raise TemplateBoundError(
                    f"it must have at most {_MOST_TOKENS} words and signs"
                )
            yield token

    def parse(self, parser: Any) -> nodes.Node:
        """Read the body of `{% generation %}`."""
        line = next(parser.stream).lineno
        body: list[nodes.Node] = parser.parse_statements(
            ("name:endgeneration",), drop_needle=True
        )
        return nodes.Scope(body, lineno=line)


def count_steps(node: nodes.Node, depth: int = 0) -> int:
    """Make each loop, macro and block of a template pay for its body.

    Returns:
        The number of nodes.

    Raises:
        TemplateBoundError: The nesting of statements is too deep.
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
        # A recursive call of the loop in its body passes it further values.
        passes = nodes.Const(1 if node.recursive else steps)
        node.iter = nodes.Filter(node.iter, _PASSES, [passes], [], None, None)
    if isinstance(node, nodes.Macro | nodes.CallBlock | nodes.Block) or (
        isinstance(node, nodes.For) and node.recursive
    ):
        node.body.insert(0, nodes.ExprStmt(_spend(steps), lineno=node.lineno))
    return size


def _spend(steps: int) -> nodes.Filter:
    """Return an expression that takes some steps, and is true."""
    return nodes.Filter(nodes.Const(True), _SPEND, [nodes.Const(steps)], [], None, None)
