"""Write the sessions of the book as programs and as Jupyter notebooks.

A session is a page whose examples continue each other. The page is the only source:
`python -m tools.update_docs` writes `notebooks/NAME.py` and `notebooks/NAME.ipynb` from
it. Each example becomes a cell of code, and the text between two examples a cell of text.
The outputs that the page shows are left out, because running the cells makes them again.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from .pages import ROOT, Link, blocks, with_targets

SESSIONS = {
    ROOT / "docs" / "BY-HAND.md": "by_hand",
    ROOT / "docs" / "BY-HAND-HEADS.md": "by_hand_heads",
    ROOT / "docs" / "BY-HAND-NF4.md": "by_hand_nf4",
}
_IMPORT = re.compile(r"^(from|import) src\b", flags=re.MULTILINE)
_COMMENT = re.compile(r"^<!-- .* -->\n?", flags=re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook: Python code, or text in Markdown."""

    is_code: bool
    text: str


def current_notebooks() -> dict[Path, str]:
    """Return the current text of each program and notebook, by file."""
    texts: dict[Path, str] = {}
    for page, name in SESSIONS.items():
        cells = cells_of(page.read_text(encoding="utf-8"))
        place = ROOT / "notebooks" / name
        texts[place.with_suffix(".py")] = program(cells, page.name)
        texts[place.with_suffix(".ipynb")] = notebook(cells)
    return texts


def cells_of(text: str) -> list[Cell]:
    """Return the cells of a page, in order.

    Code imports the installed package, and links lead from the folder of the notebooks.
    """
    text = with_targets(text, _target)
    lines = text.split("\n")
    cells: list[Cell] = []
    begin = 0

    def add_text(end: int) -> None:
        prose = _COMMENT.sub("", "\n".join(lines[begin:end])).strip()
        if prose:
            cells.append(Cell(False, prose))

    was_code = False
    for block in blocks(text):
        first = block.line - 2  # the opening fence, starting at 0
        is_output = block.language == "text" and was_code
        if block.language == "python" or is_output:
            if not is_output or any(map(str.strip, lines[begin:first])):
                add_text(first)
            begin = block.end
        was_code = block.language == "python"
        if was_code:
            code = _IMPORT.sub(r"\1 llama_bolts", block.text)
            cells.append(Cell(True, code.rstrip("\n")))
    add_text(len(lines))
    return cells


def _target(link: Link) -> str:
    """Return the target of a link of a page, from the folder of the notebooks."""
    if re.match(r"[a-z]+:|#|\.\./", link.target):
        return link.target
    return f"../docs/{link.target}"


def program(cells: list[Cell], page: str) -> str:
    """Return the cells as a Python program, with markers that editors know as cells."""
    parts = [f"# Generated from docs/{page} by `python -m tools.update_docs`."]
    for cell in cells:
        if cell.is_code:
            parts.append(f"# %%\n{cell.text}")
        else:
            lines = [f"# {line}".rstrip() for line in cell.text.split("\n")]
            parts.append("\n".join(["# %% [markdown]", *lines]))
    return "\n\n".join(parts) + "\n"


def notebook(cells: list[Cell]) -> str:
    """Return the cells as a notebook in version 4.5 of Jupyter's format."""
    made = []
    for number, cell in enumerate(cells):
        lines = cell.text.splitlines(keepends=True)
        entry: dict[str, object] = {
            "cell_type": "code" if cell.is_code else "markdown",
            "id": f"cell-{number}",
            "metadata": {},
            "source": lines,
        }
        if cell.is_code:
            entry |= {"execution_count": None, "outputs": []}
        made.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
