"""Functions that an answer calls: what it says beside the calls, and the grammar of calls."""

import contextlib
import re
from collections.abc import Sequence

from .answer_text import overlap
from .chat_formats import Tool, ToolCall, ToolStyle, json_text
from .errors import ChatFormatError
from .grammars import BLANKS


def split_calls(style: ToolStyle, text: str, is_over: bool = True) -> tuple[str, list[ToolCall]]:
    """Return what an answer says, and the calls that it asks for.

    Where more comes, what may become a call is held back.
    """
    if not style.begin and not is_over:
        return "" if text.startswith("{") else text, []
    call = rf'{{"name": "([^"\n]*)", "{style.key}": ({{.*?}})}}'
    marked = rf"\n?{style.begin}\n{call}\n{style.end}" if style.begin else rf"\A{call}\Z"
    calls, said, at = list[ToolCall](), "", 0
    for found in re.finditer(marked, text, re.DOTALL):
        with contextlib.suppress(ChatFormatError):  # raised for a call that was cut
            calls.append(ToolCall(found[1], found[2]))
            said, at = said + text[at : found.start()], found.end()
    rest = text[at:]
    if not is_over:
        marks = style.begin, f"\n{style.begin}"
        ends = (rest.find(m) if m in rest else len(rest) - overlap(rest, m) for m in marks)
        rest = rest[: min(ends)]
    return said + rest, calls


def grammar_of_calls(style: ToolStyle, tools: Sequence[Tool], is_required: bool, many: bool) -> str:
    """Return the grammar, for Lark, of answers that call functions, of which there is at least one.

    An answer is a call where one is required, and may be `many`.
    """
    first, again = json_text(style.begin), json_text("\n" + style.begin)
    more = f"({again} call)*" if style.begin and many else ""
    begin = first if style.begin else ""
    if is_required:
        lines = [f"start: {begin} call {more}"]
    elif style.begin:
        lines = [f"start: TEXT | trigger call {more}", f"trigger[lazy]: TEXT {first}",
                 r"TEXT: /(.|\n)*/"]  # fmt: skip
    else:
        lines = ["start: TEXT | call", r"TEXT: /([^{](.|\n)*)?/"]
    gap = "\n" if style.begin else ""
    start, end = f'{gap}{{"name": "', f"}}{gap}{style.end}"
    names = " | ".join(f"f{number}" for number in range(len(tools)))
    lines.append(f"call: {json_text(start)} ({names}) {json_text(end)}")
    for number, tool in enumerate(tools):
        function = tool["function"]
        schema = {"type": "object"} | (function.get("parameters") or {}) | {"x-guidance": BLANKS}
        named = json_text(f'{function["name"]}", "{style.key}": ')
        lines += [f"f{number}: {named} a{number}", f"a{number}: %json {json_text(schema)}"]
    return "\n".join(lines)
