"""Update the parts of a page that depend on code: line numbers in links, and blocks."""

import re
from collections.abc import Callable
from pathlib import Path

from src.trace.code import symbols_of

from .pages import Link, PageError, name_of, with_targets

Producer = Callable[[Path, str], str]

_LINE = re.compile(r"^([^#:]+\.(?:py|c|h))#L\d+$")
_BLOCK = re.compile(
    r"^(<!-- generated: (\S+)(?: ([^\n]*?))? -->)\n(.*?)^(<!-- end -->)$",
    flags=re.DOTALL | re.MULTILINE,
)
_MARKER = re.compile(r"^<!-- (?:generated: .*|end) -->$", flags=re.MULTILINE)


def with_lines(page: Path, text: str) -> str:
    """Return a page with the current line number in each link to a line of code.

    The symbol is the title of the link if it has one, or else its text:
    `[LlamaAttention.forward](../src/model/llama.py#L1)`,
    `[the mask](../src/model/llama.py#L1 "causal_mask")`. Raises PageError if the file
    does not define the symbol.
    """

    def target(link: Link) -> str:
        found = _LINE.match(link.target)
        if found is None:
            return link.target
        file = page.parent / found[1]
        symbol = (link.title or link.text).strip("`").removesuffix("()")
        number = line_in(file, symbol) if file.is_file() else None
        if number is None:
            place = f"{name_of(page)}:{link.line}"
            raise PageError(
                f"{place}: link: expected a symbol of {found[1]}, got {symbol!r}"
            )
        return f"{found[1]}#L{number}"

    return with_targets(text, target)


def line_in(file: Path, symbol: str) -> int | None:
    """Return the line on which a Python or C file defines a symbol, or None."""
    if file.suffix == ".py":
        return symbols_of(file.resolve()).get(symbol, (None, ""))[0]
    lines = [
        "" if line.lstrip().startswith(("//", "*", "/*")) else line
        for line in file.read_text(encoding="utf-8").split("\n")
    ]
    name = re.escape(symbol)
    defines = re.compile(rf"^(?:#define\s+|\w[\w\s*]*[\s*]){name}\b(?!.*;\s*$)")
    declares = re.compile(rf"\b{name}\b")
    places = (
        n
        for kind in (defines, declares)
        for n, x in enumerate(lines, 1)
        if kind.search(x)
    )
    return next(places, None)


def with_blocks(page: Path, text: str, producers: dict[str, Producer]) -> str:
    """Return a page with the current contents of each generated block.

    The first word of a block's name selects its producer, which is called with the page
    and the other words, and returns Markdown. Raises PageError if a marker has no
    counterpart, or if a block has no producer.
    """
    if alone := _MARKER.search(_BLOCK.sub("", text)):
        raise PageError(
            f"{name_of(page)}: {alone[0]}: expected pairs of markers, got one alone"
        )

    def block(found: re.Match[str]) -> str:
        opening, kind, argument, _body, closing = found.groups()
        if kind not in producers:
            known = ", ".join(sorted(producers))
            raise PageError(
                f"{name_of(page)}: {opening}: expected one of {known}, got {kind}"
            )
        return f"{opening}\n{producers[kind](page, argument or '').strip()}\n{closing}"

    return _BLOCK.sub(block, text)
