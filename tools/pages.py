"""Parse the blocks, links and headings of a Markdown page."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
_README = ROOT / "README.md"
# The menu of the site: the groups and pages in the list of pages in README.md.
MENU = {
    caption: [ROOT / page for page in re.findall(r"\((.*)\)$", pages, flags=re.MULTILINE)]
    for caption, pages in re.findall(
        r"^([\w ]+):\n\n((?: *(?:[0-9]+\.|-) \[.*\]\(.*\.md\)\n)+)",
        _README.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
}

_RUN = re.compile(r"^<!-- run: ([\w ]+) -->$")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)(?: +\"([^\"]*)\")?\)")


class PageError(ValueError):
    """Raised if a page violates a convention. The message names the file and the line."""


@dataclass(frozen=True)
class Block:
    """A fenced block in a page."""

    language: str  # the word after the fence
    text: str  # the lines, including the last newline
    line: int  # the number of the first line of text, starting at 1
    end: int  # the line number of the closing fence
    # The requirements in `<!-- run: ... -->` on the previous line: `slow`, `oracle` or
    # both.
    needs: frozenset[str]


@dataclass(frozen=True)
class Link:
    """A link in a page."""

    text: str  # between the square brackets
    target: str  # a path with an anchor, or an address
    title: str  # between quotes after the target, or empty
    line: int  # the line number, starting at 1
    is_picture: bool = False  # whether the page shows the target as a picture


def documents() -> list[Path]:
    """Return all pages: README.md and the pages in the menu."""
    return [_README, *(page for pages in MENU.values() for page in pages)]


def name_of(path: Path) -> str:
    """Return a path relative to the repository, or else only its name."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    lines = text.split("\n")
    for token in MarkdownIt().parse(text):
        if (
            token.type != "fence" or token.map is None or token.level
        ):  # blocks in lists count as text
            continue
        first, end = token.map
        mark = _RUN.match(lines[first - 1]) if first else None
        needs = frozenset(mark[1].split()) if mark else frozenset()
        found.append(Block(token.info.strip(), token.content, first + 2, end, needs))
    return found


def links(text: str) -> Iterator[Link]:
    """Yield the links and images of a page that are not in blocks or code spans."""
    lines = text.split("\n")
    for block in blocks(text):
        lines[block.line - 2 : block.end] = [""] * (block.end - block.line + 2)
    for number, line in enumerate(lines, 1):
        spans = [span.span() for span in _CODE_SPAN.finditer(line)]
        for found in _LINK.finditer(line):
            if not any(start < found.start() < end for start, end in spans):
                yield Link(found[2], found[3], found[4] or "", number, bool(found[1]))


def with_targets(text: str, target: Callable[[Link], str]) -> str:
    """Return a page in which a function has replaced the target of each link."""
    lines = text.split("\n")
    for link in links(text):
        end = f' "{link.title}")' if link.title else ")"
        old, new = (
            f"[{link.text}]({place}{end}" for place in (link.target, target(link))
        )
        lines[link.line - 1] = lines[link.line - 1].replace(old, new)
    return "\n".join(lines)


def headings(text: str) -> list[tuple[int, str, int]]:
    """Return the level, the text and the line number of each heading."""
    return [
        (int(opening.tag[1:]), inline.content, opening.map[0] + 1)
        for opening, inline in pairwise(MarkdownIt().parse(text))
        if opening.type == "heading_open" and opening.map is not None
    ]


def table(heading: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table, given its heading (two lines) and rows of cells."""
    return "\n".join([heading, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def anchor(heading: str) -> str:
    """Return the anchor that code hosts generate for a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
