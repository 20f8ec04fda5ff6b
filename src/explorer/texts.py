"""What a reader has beside a stage: its lines of code, its section of chapter 14, its tokens."""

from functools import cache
from typing import Any

from ..tokenizer import Tokenizer
from ..trace.code import PACKAGE, find_page, section_of, shown_path, source_of
from ..trace.events import HOLDS, STAGES, Stage

_LONGEST_TEXT = 20_000  # characters of a token; longer ones are cut, and the page says so


def stages() -> list[dict[str, Any]]:
    """Return the 21 stages: name, letters of the steps, code and section."""
    return [
        {
            "number": number,
            "name": stage.name,
            "holds": HOLDS.get(number, ""),
            "function": stage.function,
            "code": stage.code,
            "chapter": stage.chapter,
            "section": _section(stage),
        }
        for number, stage in STAGES.items()
    ]


def sources() -> dict[str, dict[str, Any]]:
    """Return the functions of the stages: for `file function`, the first line and the text."""
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES.values():
        file = PACKAGE / f"{stage.module.replace('.', '/')}.py"
        name, source = shown_path(str(file)), source_of(file, stage.function)
        if source is not None:
            line, text = source
            found[f"{name} {stage.function}"] = {"file": name, "line": line, "text": text}
    return found


@cache
def _section(stage: Stage) -> str:
    """Return the section of a stage as Markdown; empty without the chapter."""
    page = find_page(stage.chapter.partition("#")[0])
    return "" if page is None else section_of(page, stage.heading)


def token_text(tokenizer: Tokenizer | None, token: int) -> tuple[str, bool]:
    """Return the text of a token, bytes that are no whole character as `\\xe2`, and if special."""
    if tokenizer is None:
        return f"token {token}", False
    if tokenizer.is_special(token):
        return _short(tokenizer.decode([token])), True
    text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    return _short(text), False


def _short(text: str) -> str:
    cut = len(text) - _LONGEST_TEXT
    return text if cut <= 0 else f"{text[:_LONGEST_TEXT]} and {cut} more characters"
