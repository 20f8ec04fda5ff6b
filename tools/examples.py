"""The Python examples of the pages: they are run, and what they print is compared."""

import contextlib
import io
import re
from dataclasses import dataclass

from .pages import Block, PageError, blocks

KINDS = ("slow", "oracle")


@dataclass(frozen=True)
class Example:
    """A ```python block, and the ```text block after it, if there is one.

    Attributes:
        code: the block that is run.
        output: the block that shows what it prints.
    """

    code: Block
    output: Block | None


@dataclass(frozen=True)
class Outcome:
    """What a run of an example printed."""

    example: Example
    printed: str

    @property
    def shown(self) -> str:
        """What the page says that it prints."""
        return "" if self.example.output is None else self.example.output.text

    @property
    def is_as_shown(self) -> bool:
        """Whether it printed what the page shows."""
        return matches(self.shown, self.printed)


def examples(text: str, name: str) -> list[Example]:
    """Returns the examples of a page, in order.

    Raises:
        PageError: a block needs what is not known.
    """
    lines = text.split("\n")
    found = []
    all_blocks = blocks(text, name)
    for number, block in enumerate(all_blocks):
        if block.language != "python":
            continue
        if not block.needs <= set(KINDS):
            needs = ", ".join(sorted(block.needs))
            raise PageError(
                f"{name}:{block.line - 2}: run: expected {' or '.join(KINDS)}, got {needs}"
            )
        following = all_blocks[number + 1] if number + 1 < len(all_blocks) else None
        if following is not None:
            between = lines[block.end : following.line - 2]
            if following.language != "text" or any(line.strip() for line in between):
                following = None
        found.append(Example(block, following))
    return found


def run_examples(text: str, name: str, allowed: frozenset[str] = frozenset()) -> list[Outcome]:
    """Runs the examples of a page one after the other, in one namespace, as a reader would.

    Args:
        text: the page.
        name: for tracebacks; their line numbers are those of the page.
        allowed: which of `KINDS` are run; a block that needs another is left out.

    Returns:
        What each one printed.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    outcomes = []
    for example in examples(text, name):
        if not example.code.needs <= allowed:
            continue
        code = "\n" * (example.code.line - 1) + example.code.text
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), namespace)  # noqa: S102 - the pages are ours
        outcomes.append(Outcome(example, printed.getvalue()))
    return outcomes


def matches(shown: str, printed: str) -> bool:
    """Returns whether a page shows what was printed.

    Blanks at the ends of lines do not count. A line `...` stands for any lines, and `...` within a
    line for any text: for what differs from run to run, such as times.
    """
    parts = [re.escape(part) for part in _stripped(shown).split("...")]
    return re.fullmatch(r"[\s\S]*?".join(parts), _stripped(printed)) is not None


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))
