"""What writes the generated blocks, by the first word of their names."""

import ast
from functools import reduce
from pathlib import Path

from src.cli.arguments import build_parser

from .generated import Producer
from .links import line_in
from .pages import ROOT, PageError


def code(page: Path, argument: str) -> str:
    """Returns a symbol's source: `code src/model/llama.py LlamaFeedForward.forward`."""
    name, _, symbol = argument.partition(" ")
    file = ROOT / name
    number = line_in(file, symbol) if file.is_file() else None
    if number is None or file.suffix != ".py":
        raise PageError(f"generated: code: expected a file and its symbol, got {argument!r}")
    source = file.read_text(encoding="utf-8")
    lines = source.split("\n")
    node = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno == number
    )
    body = lines[node.lineno - 1 : node.end_lineno]
    indent = len(body[0]) - len(body[0].lstrip())
    shown = "\n".join(line[indent:] for line in body)
    up = "../" * (len(page.relative_to(ROOT).parts) - 1)
    return f"[`{symbol}`]({up}{name}#L{number})\n\n```py\n{shown}\n```"


def help_text(_page: Path, argument: str) -> str:
    """Returns `--help`, or one group of it: `help trace`."""
    text = build_parser().format_help()
    if argument:
        groups = [part for part in text.split("\n\n") if part.startswith(f"{argument}:\n")]
        if len(groups) != 1:
            raise PageError(f"generated: help: expected a group of --help, got {argument!r}")
        text = groups[0]
    return f"```text\n{text.strip()}\n```"


def tree(_page: Path, argument: str) -> str:
    """Returns the modules of a folder, each with the first line of its docstring: `tree src/ml`."""
    folder = ROOT / argument
    files = sorted(path for path in folder.glob("*") if path.suffix in (".py", ".c", ".h"))
    if not files:
        raise PageError(f"generated: tree: expected a folder of sources, got {argument!r}")
    rows = [(path.name, _summary(path)) for path in files]
    width = max(len(name) for name, _ in rows)
    shown = "\n".join(f"  {name:<{width}}  {summary}".rstrip() for name, summary in rows)
    return f"```text\n{argument.rstrip('/')}/\n{shown}\n```"


def _summary(path: Path) -> str:
    """Returns the first line of what a file says about itself."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        said = text.partition("/*")[2].partition("*/")[0]
        said = reduce(lambda s, mark: s.replace(mark, " "), ("\n *", "\n"), said)
        said = " ".join(said.split()).partition(". ")[0]
    return said.strip().split("\n")[0].rstrip(".")


PRODUCERS: dict[str, Producer] = {"code": code, "help": help_text, "tree": tree}
