"""Links from pages to lines of code: the line number is found by the symbol that the link names."""

import re
from pathlib import Path

from src.trace.code import line_of

from .pages import Link, PageError, links, name_of

_LINE = re.compile(r"^([^#]+\.(?:py|c|h))#L(\d+)$")


def corrected(page: Path) -> str:
    """Returns the text of a page with the right line number in each link to a line of code.

    The symbol is the text of the link, or its title where the text is something else:
    `[LlamaAttention.forward](../src/model/llama.py#L1)`,
    `[the mask](../src/model/llama.py#L1 "causal_mask")`.

    Raises:
        PageError: a link names no symbol of its file.
    """
    text = page.read_text(encoding="utf-8")
    lines = text.split("\n")
    for link in links(text):
        right = right_target(page, link)
        if right is not None and right != link.target:
            old, new = (
                f"]({target}{' ' if link.title else ')'}" for target in (link.target, right)
            )
            before, after = f"[{link.text}{old}", f"[{link.text}{new}"
            lines[link.line - 1] = lines[link.line - 1].replace(before, after)
    return "\n".join(lines)


def right_target(page: Path, link: Link) -> str | None:
    """Returns the target that a link to a line of code must have; None for any other link.

    Raises:
        PageError: the link names no symbol of its file.
    """
    found = _LINE.match(link.target)
    if found is None or "://" in link.target:
        return None
    file = (page.parent / found[1]).resolve()
    symbol = (link.title or link.text).strip("`").removesuffix("()")
    number = line_in(file, symbol) if file.is_file() else None
    if number is None:
        raise PageError(
            f"{name_of(page)}:{link.line}: link: expected a symbol of {found[1]}, got {symbol!r}"
        )
    return f"{found[1]}#L{number}"


def line_in(file: Path, symbol: str) -> int | None:
    """Returns the line where a Python or C file defines a symbol; None where it does not."""
    if file.suffix == ".py":
        return line_of(file, symbol)
    lines = file.read_text(encoding="utf-8").split("\n")
    starts = re.compile(rf"^(?:#define\s+|\w[\w\s*]*[\s*]){re.escape(symbol)}\b(?!.*;\s*$)")
    declares = re.compile(rf"\b{re.escape(symbol)}\b")
    for pattern in (starts, declares):
        for number, line in enumerate(lines, 1):
            if pattern.search(line) and not line.lstrip().startswith(("//", "*", "/*")):
                return number
    return None
