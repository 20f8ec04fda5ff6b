"""The contents of generated blocks, by the first word of their names."""

import ast
import dataclasses
import io
import os
import re
from pathlib import Path

from src.cli.values import ranges
from src.trace import STAGES, Event
from src.trace.events import size_of
from src.trace.logger import TraceLog

from .chat import chat
from .front_page import memory, speed
from .generated import Producer, line_in, with_blocks, with_lines
from .pages import MENU, ROOT, PageError, headings, name_of
from .runs import LLAMA_3_1_8B, SIZES_8B, bundled_events, bundled_model, events_8b


def code(page: Path, argument: str) -> str:
    """Return a symbol's source, of Python or C: `code src/ml/ops/elementwise.py silu`."""
    name, _, symbol = argument.partition(" ")
    file = ROOT / name
    number = line_in(file, symbol) if file.is_file() else None
    if number is None:
        raise PageError(f"generated: code: expected a file and its symbol, got {argument!r}")
    source = file.read_text(encoding="utf-8")
    lines = source.split("\n")
    if file.suffix == ".py":
        language, end = "py", _last_line(source, number)
    else:
        language = "c"
        end = number if lines[number - 1].endswith("}") else lines.index("}", number) + 1
    body = lines[number - 1 : end]
    indent = len(body[0]) - len(body[0].lstrip())
    shown = "\n".join(line[indent:] for line in body)
    return f"[`{symbol}`]({_from(page, name)}#L{number})\n\n```{language}\n{shown}\n```"


def _last_line(source: str, first: int) -> int:
    """Return where the statement ends that begins at a line of Python."""
    node = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno == first
    )
    return node.end_lineno or first


def stages(page: Path, _argument: str) -> str:
    """Return the table of the stages, each with its chapter, its diagram and its code."""
    rows = ["| stage | chapter | diagram | code |", "|---:|---|---|---|"]
    for stage in STAGES.values():
        file, _, line = stage.code.partition(":")
        rows.append(
            f"| {stage.number} | [{stage.name}]({_from(page, stage.chapter)}) "
            f"| [{Path(stage.diagram).name}]({_from(page, stage.diagram)}) "
            f"| [`{stage.function}`]({_from(page, file)}#L{line}) |"
        )
    return "\n".join(rows)


def shapes(_page: Path, argument: str) -> str:
    """Return the steps of some stages with the shapes of two models: `shapes 8-10`."""
    wanted = _stages(argument)
    events = _first_pass([event for event in bundled_events() if event.stage in wanted])
    T = next(event.details["T"] for event in bundled_events() if event.stage == 3)
    sizes = SIZES_8B
    rows = [
        f"| op | result | letters | bundled, T = {T} | 8B, T = {sizes['T']} | dtype |",
        "|---|---|---|---|---|---|",
    ]
    for event in events:
        op = "" if event.op == "mark" else f"`{event.op}`"
        for x in event.outputs:
            numbers = [size_of(letter, sizes) for letter in x.letters]
            rows.append(
                f"| {op} | `{x.name}` | `[{', '.join(x.letters)}]` | {list(x.shape)} | {numbers} "
                f"| {x.dtype} |"
            )
    return "\n".join(rows)


def log(_page: Path, argument: str) -> str:
    """Return lines of `debug.log`, without times and links: `log 13`, or `log 13 8b`."""
    numbers, _, model = argument.partition(" ")
    wanted = _stages(numbers)
    if model not in ("", "8b"):
        raise PageError(f"generated: log: expected a model, 8b or none, got {model!r}")
    events = events_8b() if model else bundled_events()
    sizes = LLAMA_3_1_8B.sizes if model else bundled_model().args.sizes
    written = io.StringIO()
    view = TraceLog(sizes, debug_log=written)
    for event in _first_pass([event for event in events if event.stage in wanted], layer=None):
        view.write(dataclasses.replace(event, seconds=None if event.seconds is None else 0.0))
    lines = written.getvalue().split("\n\n", 1)[1].splitlines()
    shown = [line.replace("  0.000  ", "         ") for line in lines if line[:4] != "#   "]
    return "```text\n" + "\n".join(shown) + "\n```"


def _from(page: Path, place: str) -> str:
    """Return the path of a place in the repository as a page's link names it."""
    return os.path.relpath(ROOT / place, page.parent)


def _stages(argument: str) -> set[int]:
    numbers = {number for part in ranges(argument) for number in part}
    if not numbers <= set(STAGES):
        raise PageError(f"generated: expected stages from 1 to {len(STAGES)}, got {argument!r}")
    return numbers


def _first_pass(events: list[Event], layer: int | None = 0) -> list[Event]:
    """Return the events of the first pass through the network, of one layer or of all."""
    first: list[Event] = []
    for event in events:
        is_again = any(
            (seen.stage, seen.layer, seen.op) == (event.stage, event.layer, "mark")
            for seen in first
        )
        if event.op == "mark" and is_again:
            break
        if layer is None or event.layer in (None, layer):
            first.append(event)
    return first


def index(page: Path, _argument: str) -> str:
    """Return a list of the pages by the groups of the menu."""
    groups = []
    for group, pages in MENU.items():
        lines = [] if group == "Chapters" else [f"{group}:", ""]
        for number, path in enumerate(pages, 1):
            title = headings(path.read_text(encoding="utf-8"))[0][1]
            bullet = f"{number}." if group == "Chapters" else "-"
            shown = re.sub(r"^[0-9]+[.] ", "", title)
            lines.append(f"{bullet} [{shown}]({_from(page, name_of(path))})")
        groups.append("\n".join(lines))
    return "\n\n".join(groups)


PRODUCERS: dict[str, Producer] = {
    "chat": chat,
    "code": code,
    "index": index,
    "log": log,
    "memory": memory,
    "shapes": shapes,
    "speed": speed,
    "stages": stages,
}


def current_text(page: Path) -> str:
    """Return a page with its links to code and its generated blocks as they should be."""
    text = with_lines(page, page.read_text(encoding="utf-8"))
    return with_blocks(page, text, PRODUCERS)
