"""Markdown as HTML, in the dialect of code hosts: CommonMark with tables and anchored headings."""

import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from .pages import anchor

_COMMENT = re.compile(r"<!--.*?-->", flags=re.DOTALL)
_LANGUAGES = {"py": "python", "sh": "bash"}
_FORMATTER: HtmlFormatter[str] = HtmlFormatter(nowrap=True)


def to_html(text: str, moved: Callable[[str], str]) -> str:
    """Returns a page as HTML.

    Args:
        text: the page.
        moved: gives the target that a link or a picture has in the site.
    """
    parser = MarkdownIt("commonmark", {"highlight": _highlighted}).enable("table")
    tokens = [t for t in parser.parse(text) if not (t.type == "html_block" and _is_comment(t))]
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[at + 1].content))
        for child in token.children or ():
            name = {"link_open": "href", "image": "src"}.get(child.type)
            if name is not None:
                child.attrSet(name, moved(str(child.attrGet(name))))
    return str(parser.renderer.render(tokens, parser.options, {}))


def _is_comment(token: Token) -> bool:
    """Returns whether a block of HTML says nothing to readers."""
    return not _COMMENT.sub("", token.content).strip()


def _highlighted(text: str, language: str, _attributes: str) -> str:
    """Returns code in colours, or nothing where its language is not known."""
    if language in ("", "text"):
        return ""
    try:
        lexer = get_lexer_by_name(_LANGUAGES.get(language, language), stripnl=False)
    except ClassNotFound:
        return ""
    return str(highlight(text, lexer, _FORMATTER))
