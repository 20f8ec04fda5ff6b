"""`--examples`: the predefined prompts to look at, and in a terminal to choose from."""

import sys

from .arguments import Options
from .console import Console
from .examples import EXAMPLES, Example, example_lines
from .loading import open_session
from .one_shot import standard_input_is_terminal


def report_examples(options: Options, console: Console) -> None:
    """List the examples on standard output, or let a person choose from them and run those.

    Args:
        options: the command line.
        console: the streams of this run.

    Raises:
        KeyboardInterrupt: Ctrl-C, at the menu or in an answer.
        LlamaBoltsError: as `open_session` and `Session.ask`.
    """
    if not standard_input_is_terminal():
        for line in example_lines():
            console.report_line(line)
        return
    session = open_session(options, console)
    while (example := _choose(console)) is not None:
        session.clear()
        session.system = example.system
        session.completion = example.completion
        if not session.ask(example.prompt).is_complete:
            raise KeyboardInterrupt


def _choose(console: Console) -> Example | None:
    """Show the menu until a number of it is typed; None where nothing is typed, or Ctrl-D."""
    console.reply("\n" + "\n".join(example_lines()))
    while True:
        console.ask(f"example, 1 to {len(EXAMPLES)}, or Enter to leave: ")
        typed = sys.stdin.readline().strip()
        if not typed:
            return None
        if typed.isdecimal() and 1 <= int(typed[:4]) <= len(EXAMPLES):
            return EXAMPLES[int(typed) - 1]
        console.error(f"expected a number from 1 to {len(EXAMPLES)}, got {typed[:80]}")
