"""The frame of a page of the site, and its style sheet. Nothing comes from the network."""

from collections.abc import Sequence

Entry = tuple[str, str, bool]

_STYLE = """\
:root { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --code: #f6f8fa;
  --link: #0969da; }
* { box-sizing: border-box; }
body { margin: 0; display: flex; background: var(--paper); color: var(--ink);
  font: 16px/1.6 -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; }
nav { flex: 0 0 17rem; height: 100vh; position: sticky; top: 0; overflow-y: auto;
  padding: 1.5rem 1rem; border-right: 1px solid var(--line); font-size: 14px; }
nav a { display: block; padding: 0.2rem 0.5rem; border-radius: 4px; color: var(--ink); }
nav a.here { background: var(--code); font-weight: bold; }
main { flex: 1 1 auto; min-width: 0; max-width: 64rem; padding: 1.5rem 2.5rem 4rem; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
h1, h2, h3 { line-height: 1.3; }
h2 { margin-top: 2.2em; padding-bottom: 0.2em; border-bottom: 1px solid var(--line); }
:target { background: #fff3c4; }
img { max-width: 100%; height: auto; }
pre, code { font: 13.5px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
code { background: var(--code); padding: 0.1em 0.3em; border-radius: 4px; }
pre { background: var(--code); padding: 0.8rem 1rem; border-radius: 6px; overflow-x: auto; }
pre code { background: none; padding: 0; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: 0.3rem 0.7rem; text-align: left; }
.linenos { color: var(--soft); user-select: none; padding-right: 1em; }
footer { display: flex; justify-content: space-between; gap: 2rem; margin-top: 3rem;
  padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 60rem) {
  body { display: block; }
  nav { height: auto; position: static; border-right: 0; border-bottom: 1px solid var(--line); }
  main { padding: 1rem; }
}
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e6edf3; --soft: #9da5ae; --line: #3d444d; --code: #161b22;
    --link: #58a6ff; }
  :target { background: #3b2f0b; }
}
"""


def style() -> str:
    """Returns the style sheet of all pages."""
    return _STYLE


def framed(title: str, body: str, entries: Sequence[Entry], up: str) -> str:
    """Returns a page of the site.

    Args:
        title: what it is called, escaped.
        body: its content.
        entries: target, title and whether it is this page, for the pages of the menu in order.
        up: the way to the top of the site.
    """
    marks = {True: ' class="here"', False: ""}
    menu = "\n".join(f'<a href="{at}"{marks[here]}>{name}</a>' for at, name, here in entries)
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="stylesheet" href="{up}style.css">\n</head>\n<body>\n'
        f"<nav>\n{menu}\n</nav>\n<main>\n{body}\n{_neighbours(entries)}</main>\n</body>\n</html>\n"
    )


def _neighbours(entries: Sequence[Entry]) -> str:
    """Returns links to the pages before and after this one; a source file has none."""
    at = next((number for number, (_, _, here) in enumerate(entries) if here), None)
    if at is None:
        return ""
    before = entries[at - 1] if at else None
    after = entries[at + 1] if at + 1 < len(entries) else None
    left = f'<a href="{before[0]}">&larr; {before[1]}</a>' if before else ""
    right = f'<a href="{after[0]}">{after[1]} &rarr;</a>' if after else ""
    return f"<footer><span>{left}</span><span>{right}</span></footer>\n"
