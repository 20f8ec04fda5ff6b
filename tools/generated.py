"""Generated blocks: what stands between `<!-- generated: NAME -->` and `<!-- end -->` in a page."""

import re
from collections.abc import Callable
from pathlib import Path

from .pages import PageError, name_of

Producer = Callable[[Path, str], str]

_BLOCK = re.compile(
    r"^(<!-- generated: (\S+)(?: ([^\n]*?))? -->)\n(.*?)^(<!-- end -->)$",
    flags=re.DOTALL | re.MULTILINE,
)
_MARKER = re.compile(r"^<!-- (?:generated: .*|end) -->$", flags=re.MULTILINE)


def regenerated(page: Path, text: str, producers: dict[str, Producer]) -> str:
    """Returns a page with each generated block made anew.

    Args:
        page: its file, which links in blocks start from.
        text: the page.
        producers: by the first word of a block's name; a producer takes the page and the rest of
            the name, and returns Markdown. A block whose producer is absent stays as it is.

    Raises:
        PageError: a marker has no partner, or a block's name is not known.
    """
    markers, pairs = len(_MARKER.findall(text)), len(_BLOCK.findall(text))
    if markers != 2 * pairs:
        raise PageError(
            f"{name_of(page)}: generated blocks: expected pairs of markers, "
            f"got {markers} markers and {pairs} pairs"
        )

    def block(found: re.Match[str]) -> str:
        opening, kind, argument, _body, closing = found.groups()
        if kind not in producers:
            known = ", ".join(sorted(producers))
            raise PageError(f"{name_of(page)}: {opening}: expected one of {known}, got {kind}")
        return f"{opening}\n{producers[kind](page, argument or '').strip()}\n{closing}"

    return _BLOCK.sub(block, text)
