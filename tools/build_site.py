"""Builds a site from the pages, to be read offline: `python -m tools.build_site DIRECTORY`.

Every page, every picture, and every source file that a page leads to becomes a file of the site. A
link that leads nowhere ends the build. It needs the extra `docs`.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from .pages import ROOT, PageError, documents, headings, name_of
from .site_check import broken_links
from .site_code import code_page, code_style, folder_entries, folder_page, page_name
from .site_markdown import to_html
from .site_template import framed, style

_LINE = re.compile(r"^L(\d+)$")


class Site:
    """A site while it is built.

    Args:
        target: the folder that it is written to.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._pages = documents()
        self._waiting: list[Path] = []
        self._done: set[Path] = set()

    def build(self) -> int:
        """Writes all files and returns how many.

        Raises:
            PageError: links lead nowhere; the text has a line for each.
        """
        self._write(Path("style.css"), f"{style()}\n{code_style()}\n")
        for page in self._pages:
            self._write_page(page)
        while self._waiting:
            self._write_other(self._waiting.pop())
        broken = broken_links(self._target)
        if broken:
            raise PageError("\n".join(broken))
        return sum(path.is_file() for path in self._target.rglob("*"))

    def _write_page(self, page: Path) -> None:
        body = to_html(page.read_text(encoding="utf-8"), lambda link: self._moved(page, link))
        self._write_framed(page, title_of(page), body)

    def _write_other(self, path: Path) -> None:
        """Writes a picture, a source file, or the list of a folder, once."""
        if path in self._done or path in self._pages:
            return
        self._done.add(path)
        if path.is_dir():
            self._waiting += folder_entries(path)
            self._write_framed(path / "index", name_of(path), folder_page(path))
        elif path.suffix in (".svg", ".png"):
            target = self._target / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        else:
            self._write_framed(path, name_of(path), code_page(path))

    def _moved(self, page: Path, link: str) -> str:
        """Returns the target of a page's link in the site; what it leads to will be written.

        Raises:
            PageError: it leads out of the repository, or to nothing.
        """
        path, _, place = link.partition("#")
        if re.match(r"[a-z]+:", link) or not path:
            return link
        file = (page.parent / path).resolve()
        if not file.exists() or not file.is_relative_to(ROOT):
            raise PageError(f"{name_of(page)}: site: {link} leads nowhere")
        self._waiting.append(file)
        where = file / "index.html" if file.is_dir() else file.with_name(page_name(file))
        line = _LINE.match(place)
        anchor = f"#L-{line[1]}" if line else f"#{place}" if place else ""
        return os.path.relpath(where, page.parent) + anchor

    def _write_framed(self, source: Path, title: str, body: str) -> None:
        place = source.with_name(
            "index.html" if source.name == "index" else page_name(source)
        ).relative_to(ROOT)
        up = "../" * (len(place.parts) - 1)
        entries = [
            (up + page.with_name(page_name(page)).relative_to(ROOT).as_posix(), title_of(page),
             page == source)
            for page in self._pages
        ]  # fmt: skip
        self._write(place, framed(title, body, entries, up))

    def _write(self, place: Path, text: str) -> None:
        target = self._target / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def title_of(page: Path) -> str:
    """Returns the text of the first heading of a page."""
    found = headings(page.read_text(encoding="utf-8"))
    return escape(found[0][1].replace("`", "")) if found else page.stem


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the site; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.build_site", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="new, or empty")
    directory = parser.parse_args(arguments).directory.resolve()
    if directory.exists() and any(directory.iterdir()):
        parser.error(f"{directory}: expected a new or an empty directory")
    try:
        count = Site(directory).build()
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} files; open {directory / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
