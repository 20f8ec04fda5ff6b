"""What a reader has beside a stage: its lines of code, its section of chapter 14, its tokens."""

from typing import Any

from ..tokenizer import Tokenizer
from ..trace.code import PACKAGE, find_page, section_of, source_of
from ..trace.events import HOLDS, STAGES

_LONGEST_TEXT = 20_000  # characters of a token; longer ones are cut, and the page says so


def stages() -> list[dict[str, Any]]:
    """Return the 21 stages: name, code and section; that is empty without the chapter."""
    return [
        {
            "number": number,
            "name": stage.name,
            "holds": HOLDS.get(number, ""),
            "function": stage.function,
            "code": stage.code,
            "chapter": stage.chapter,
            "section": section_of(page, stage.heading) if page is not None else "",
        }
        for number, stage in STAGES.items()
        for page in [find_page(stage.chapter.partition("#")[0])]
    ]


def sources() -> dict[str, dict[str, Any]]:
    """Return the functions of the stages: for `file function`, the first line and the text."""
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES.values():
        name = stage.code.partition(":")[0]
        source = source_of(PACKAGE.parent / name, stage.function)
        if source is not None:
            line, text = source
            found[f"{name} {stage.function}"] = {"file": name, "line": line, "text": text}
    return found


def token_text(tokenizer: Tokenizer | None, token: int) -> tuple[str, bool]:
    """Return the text of a token, bytes that are no whole character as `\\xe2`, and if special."""
    if tokenizer is None:
        return f"token {token}", False
    is_special = tokenizer.is_special(token)
    if is_special:
        text = tokenizer.decode([token])
    else:
        text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} and {len(text) - _LONGEST_TEXT} more characters"
    return text, is_special
