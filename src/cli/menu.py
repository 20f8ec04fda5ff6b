"""The predefined prompts, to look at and to choose from: `--examples` and `/examples`."""

import sys

from .arguments import Options
from .console import Console
from .errors import UsageError
from .examples import EXAMPLES, Example, example_lines
from .loading import open_session
from .one_shot import standard_input_is_terminal
from .session import Session

_NUMBERS = f"a number from 1 to {len(EXAMPLES)}"


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


def list_or_ask_example(session: Session, argument: str) -> None:
    """List the examples, or forget the chat and ask one of them with its system prompt.

    Raises:
        UsageError: there is no such example, or it continues a text where messages are answered, or
            the other way round; nothing has changed.
        LlamaBoltsError: as `Session.ask`.
    """
    if not argument:
        session.console.reply("\n".join(example_lines()))
        return
    example = _example(argument)
    if example is None:
        raise UsageError(f"/examples: expected {_NUMBERS}, got {argument}")
    if example.completion != session.completion:
        how = "without" if session.completion else "with"
        raise UsageError(f"/examples {argument}: needs a start {how} --completion")
    session.clear()
    session.system = example.system
    session.console.reply(f"the conversation starts anew: {example.description}")
    session.ask(example.prompt)


def _choose(console: Console) -> Example | None:
    """Show the menu until a number of it is typed; None where nothing is typed, or Ctrl-D."""
    console.reply("\n" + "\n".join(example_lines()))
    while True:
        console.ask(f"example, 1 to {len(EXAMPLES)}, or Enter to leave: ")
        typed = sys.stdin.readline().strip()
        if not typed:
            return None
        example = _example(typed)
        if example is not None:
            return example
        console.error(f"expected {_NUMBERS}, got {typed[:80]}")


def _example(typed: str) -> Example | None:
    """Return the example of a number that was typed, or None where there is none."""
    if typed.isdecimal() and 1 <= int(typed[:4]) <= len(EXAMPLES):
        return EXAMPLES[int(typed) - 1]
    return None
