"""Source files and folders as pages of the site, so that links to lines of code work offline."""

from html import escape
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound

from .pages import ROOT, PageError

_LARGEST = 400_000
_HIDDEN = ("__pycache__", ".pytest_cache")
_SHOWN = (".py", ".c", ".h", ".md", ".svg", ".json")
_FORMATTER: HtmlFormatter[str] = HtmlFormatter(
    linenos="inline", lineanchors="L", anchorlinenos=True, wrapcode=True
)


def code_page(file: Path) -> str:
    """Returns a source file as HTML; its line 120 has the anchor `L-120`.

    Raises:
        PageError: it is no text, or too large for a page.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PageError(f"{file}: site: expected a text file, got bytes: {error}") from None
    if len(text) > _LARGEST:
        raise PageError(f"{file}: site: expected at most {_LARGEST} characters, got {len(text)}")
    try:
        lexer = get_lexer_for_filename(file.name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    name = file.relative_to(ROOT).as_posix()
    return f"<h1>{escape(name)}</h1>\n{highlight(text, lexer, _FORMATTER)}"


def folder_page(folder: Path) -> str:
    """Returns what is in a folder as HTML: links to its files and folders."""
    rows = []
    for path in folder_entries(folder):
        target = f"{path.name}/index.html" if path.is_dir() else page_name(path)
        name = f"{path.name}/" if path.is_dir() else path.name
        rows.append(f'<li><a href="{escape(target)}">{escape(name)}</a></li>')
    name = folder.relative_to(ROOT).as_posix()
    return f"<h1>{escape(name)}/</h1>\n<ul>\n" + "\n".join(rows) + "\n</ul>"


def folder_entries(folder: Path) -> list[Path]:
    """Returns the files and folders of a folder that the site shows."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in _HIDDEN and folder_entries(path):
                found.append(path)
        elif path.suffix in _SHOWN and path.stat().st_size <= _LARGEST:
            found.append(path)
    return found


def page_name(file: Path) -> str:
    """Returns the name of the page that shows a file: of a picture, the picture."""
    if file.suffix == ".md":
        return "index.html" if file.name == "README.md" else f"{file.stem}.html"
    return file.name if file.suffix in (".svg", ".png") else f"{file.name}.html"


def code_style() -> str:
    """Returns the colours of code, for light and for dark."""
    light = HtmlFormatter(style="default").get_style_defs("code")
    dark = HtmlFormatter(style="github-dark").get_style_defs("code")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
