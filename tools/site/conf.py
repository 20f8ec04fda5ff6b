"""The configuration of the documentation site, which can be read offline.

`python -m sphinx -W -c tools/site . site` builds the site. Sphinx renders the pages of
the documentation. This file adds the menu, and a page for each source file that the
documentation links to. It needs the `docs` extra.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode, math_block
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, get_lexer_for_filename
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.pages import MENU, ROOT, Link, documents, links, name_of, with_targets

_COPIED = (".svg", ".png", ".html")  # copied to the site unchanged
_SUFFIXES = (".py", ".c", ".h", ".inc", ".md", *_COPIED)
_MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
_FORMATTER: HtmlFormatter[str] = HtmlFormatter(
    linenos="inline", lineanchors="L", anchorlinenos=True, wrapcode=True
)

project = html_title = "llama-bolts"
root_doc = "README"
include_patterns = [name_of(page) for page in documents()]
extensions = ["myst_parser"]
myst_fence_as_directive = ["math"]
html_math_renderer = "mathml"
myst_heading_anchors = 6
# `_edit` writes `code:` before the target of a link to a source file, picture or folder.
myst_url_schemes = {"http": None, "https": None, "code": {"url": "{{path}}#{{fragment}}"}}
highlight_language = "none"
smartquotes = False
html_theme = "furo"
html_static_path = ["site.css", "site.js"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_copyright = html_copy_source = False
html_show_search_summary = False  # browsers do not fetch it from local files


def setup(app: Sphinx) -> None:
    """Register the functions that extend Sphinx."""
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("source-read", _edit)
    app.connect("html-collect-pages", _code_pages)


def _edit(_app: Sphinx, name: str, source: list[str]) -> None:
    """Adapt the targets of links to code, and add the menu to README.md."""
    page = ROOT / f"{name}.md"

    def target(link: Link) -> str:
        file = _linked_file(page, link)
        if file is None:
            return link.target
        place = os.path.relpath(_place(file), page.parent.relative_to(ROOT))
        return f"code:{place}{_fragment(link)}"

    source[0] = with_targets(source[0], target)
    if name == root_doc:
        for caption, pages in MENU.items():
            listed = "\n".join(f"/{name_of(page)}" for page in pages)
            source[0] += (
                f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
            )


def _formula(page: HTML5Translator, node: math_block) -> None:
    """Write a ```math block as MathML, which browsers render without a script."""
    page.body.append(
        f'<div class="math">{convert(node.astext(), display="block")}</div>\n'
    )
    raise SkipNode


def _linked_file(page: Path, link: Link) -> Path | None:
    """Return the file or folder that a link refers to.

    Returns None if the link refers to a page, an address or a picture.
    """
    path = link.target.partition("#")[0]
    file = (page.parent / path).resolve()
    is_code = path and not link.is_picture and file.suffix != ".md" and file.exists()
    return file if is_code else None


def _fragment(link: Link) -> str:
    """Return the end of a link in the site: its line, its fragment, or nothing."""
    fragment = link.target.partition("#")[2]
    line = fragment.removeprefix("L")
    if line.isdigit():
        return f"#L-{line}"
    return f"#{fragment}" if fragment else ""


def _place(file: Path) -> str:
    """Return the path in the site of a source file, picture or folder."""
    suffix = "/index.html" if file.is_dir() else "" if file.suffix in _COPIED else ".html"
    return name_of(file).removesuffix(".md") + suffix


def _code_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield the pages of source files and folders, and copy files that browsers show."""
    front = Path(__file__).with_name("landing.html").read_text(encoding="utf-8")
    yield "index", {"title": project, "body": front}, "page.html"
    for name in ("diagrams/model.svg", "docs/explorer/example.html"):  # it shows these
        _copy(ROOT / name, app)
    linked = {
        file
        for page in documents()
        for link in links(page.read_text(encoding="utf-8"))
        if (file := _linked_file(page, link))
    }
    for file in linked:
        name = name_of(file)
        if file.suffix in _COPIED:
            _copy(file, app)
            continue
        if file.is_dir():
            body = "<br>\n".join(
                f'<a href="{os.path.relpath(_place(entry), name)}">{entry.name}</a>'
                if entry in linked or entry in documents()
                else entry.name
                for entry in sorted(file.iterdir())
                if entry.suffix in _SUFFIXES
                or (entry.is_dir() and entry.name != "__pycache__")
            )
        elif file.suffix == ".ipynb":
            body = _notebook(json.loads(file.read_text(encoding="utf-8")))
        else:
            lexer = get_lexer_for_filename(file.name, stripnl=False)
            body = highlight(file.read_text(encoding="utf-8"), lexer, _FORMATTER)
        context = {"title": name, "body": f"<h1>{name}</h1>\n{body}"}
        yield _place(file).removesuffix(".html"), context, "page.html"


def _copy(file: Path, app: Sphinx) -> None:
    """Copy a file of the repository to its path in the site."""
    copy = Path(app.outdir) / name_of(file)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)


def _notebook(document: dict[str, Any]) -> str:
    """Return the cells of a notebook as HTML, text rendered and code highlighted."""
    cells = []
    for cell in document["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            code = highlight(text, PythonLexer(), HtmlFormatter())
            cells.append(f'<div class="cell-code highlight-python">{code}</div>')
        else:
            cells.append(_MARKDOWN.render(with_targets(text, _page_target)))
    return f'<div class="notebook">{"".join(cells)}</div>'


def _page_target(link: Link) -> str:
    """Return the target of a link in a notebook, with pages and code as HTML."""
    file = _linked_file(ROOT / "notebooks" / "page", link)
    if file is not None:
        place = os.path.relpath(_place(file), "notebooks")
        return place + _fragment(link)
    path, mark, anchor = link.target.partition("#")
    page = path.removesuffix(".md")
    return f"{page}.html{mark}{anchor}" if page != path else link.target
