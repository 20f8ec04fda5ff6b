"""Run the Python examples in the documentation, and compare their output."""

import ast
import contextlib
import doctest
import io
from dataclasses import dataclass
from itertools import zip_longest

from .pages import Block, PageError, blocks

KINDS = ("slow", "oracle", "real")


@dataclass
class Example:
    """A ```python block, and the ```text block after it, if there is one."""

    code: Block
    output: Block | None
    printed: str = ""  # the output of the last run

    @property
    def is_as_shown(self) -> bool:
        """Whether the output equals the text in the page, except for trailing spaces.

        A line `...` matches any lines, and `...` within a line matches any text, such as
        a time.
        """
        shown, printed = (
            "\n".join(map(str.rstrip, text.rstrip().split("\n")))
            for text in (self.output.text if self.output else "", self.printed)
        )
        return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


def examples(text: str, name: str) -> list[Example]:
    """Return the examples of a page in order.

    Raises PageError if an example needs something that is not in `KINDS`.
    """
    lines = text.split("\n")
    found = []
    all_blocks = blocks(text)
    for block, after in zip_longest(all_blocks, all_blocks[1:]):
        if block.language == "python":
            if not block.needs <= set(KINDS):
                place = f"{name}:{block.line - 2}"
                needs = ", ".join(sorted(block.needs))
                raise PageError(
                    f"{place}: run: expected {' or '.join(KINDS)}, got {needs}"
                )
            is_text = after is not None and after.language == "text"
            is_output = is_text and not any(
                map(str.strip, lines[block.end : after.line - 2])
            )
            found.append(Example(block, after if is_output else None))
    return found


def run_cell(code: str, name: str, namespace: dict[str, object]) -> None:
    """Run code, and print the value of its last expression as an interpreter does.

    The code belongs to this repository.
    """
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), namespace)  # noqa: S102
        return
    tree.body.pop()
    exec(compile(tree, name, "exec"), namespace)  # noqa: S102
    value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307
    if value is not None:
        print(repr(value))


def run_examples(
    text: str, name: str, allowed: frozenset[str] = frozenset()
) -> list[Example]:
    """Run the examples of a page in order and in one namespace, as a reader would.

    Examples that need anything that is not in `allowed` are skipped. The line numbers in
    tracebacks refer to the page.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    done = [example for example in examples(text, name) if example.code.needs <= allowed]
    for example in done:
        code = "\n" * (example.code.line - 1) + example.code.text
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_cell(code, name, namespace)
        example.printed = printed.getvalue()
    return done
