"""Whether every link of a built site leads to a file and an anchor, and none to the network."""

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote


class _Links(HTMLParser):
    """Collects what a page links to, what it loads, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in ("src", "href"):
            if name in values and tag in ("img", "script", "link", "source"):
                self.loaded.append(values[name])


def broken_links(site: Path) -> list[str]:
    """Returns a line for each link of a site that leads nowhere."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            if link.startswith(("http:", "https:", "mailto:")):
                if link in page.loaded:
                    broken.append(f"{path.relative_to(site)}: {link} is loaded from the network")
                continue
            file, _, anchor = unquote(link).partition("#")
            target = Path(os.path.normpath(path.parent / file)) if file else path
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link} leads to no file")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{path.relative_to(site)}: {link} leads to no place in it")
    return broken


def _read(path: Path) -> _Links:
    page = _Links()
    page.feed(path.read_text(encoding="utf-8"))
    return page
