"""The Python examples of the pages: they are run, and what they print is compared."""

import contextlib
import dataclasses
import doctest
import io
import itertools
from dataclasses import dataclass

from .pages import Block, PageError, blocks

KINDS = ("slow", "oracle")


@dataclass(frozen=True)
class Example:
    """A ```python block, and the ```text block after it, if there is one."""

    code: Block  # the block that is run
    output: Block | None  # the block that shows what it prints
    printed: str = ""  # what a run of it printed

    @property
    def is_as_shown(self) -> bool:
        """Whether it printed what the page shows."""
        return matches(self.output.text if self.output else "", self.printed)


def examples(text: str, name: str) -> list[Example]:
    """Return the examples of a page, in order.

    Raises:
        PageError: A block needs what is not known.
    """
    lines = text.split("\n")
    found = []
    all_blocks = blocks(text, name)
    for block, following in itertools.zip_longest(all_blocks, all_blocks[1:]):
        if block.language != "python":
            continue
        if not block.needs <= set(KINDS):
            place, needs = f"{name}:{block.line - 2}", ", ".join(sorted(block.needs))
            raise PageError(f"{place}: run: expected {' or '.join(KINDS)}, got {needs}")
        is_output = (
            following is not None
            and following.language == "text"
            and not any(line.strip() for line in lines[block.end : following.line - 2])
        )
        found.append(Example(block, following if is_output else None))
    return found


def run_examples(text: str, name: str, allowed: frozenset[str] = frozenset()) -> list[Example]:
    """Run the examples of a page one after the other, in one namespace, as a reader would.

    Args:
        text: The page.
        name: For tracebacks; their line numbers are those of the page.
        allowed: Which of `KINDS` are run; a block that needs another is left out.

    Returns:
        Those that were run, each with what it printed.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    done = []
    for example in examples(text, name):
        if not example.code.needs <= allowed:
            continue
        code = "\n" * (example.code.line - 1) + example.code.text
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), namespace)  # noqa: S102 - the pages are ours
        done.append(dataclasses.replace(example, printed=printed.getvalue()))
    return done


def matches(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed.

    Blanks at the ends of lines do not count. A line `...` matches any lines, and `...` within a
    line any text: for what differs from run to run, such as times.
    """
    checker, texts = doctest.OutputChecker(), (_stripped(shown), _stripped(printed))
    return checker.check_output(*texts, doctest.ELLIPSIS)


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))
