"""Functions that a model may ask for: calls in a text, how answers are split, and the grammar."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..untrusted import parse_strict_json
from .answer_text import overlap
from .errors import ChatFormatError

# A function as clients describe it: `{"type": "function", "function": {"name": ...}}`.
Tool = Mapping[str, Any]

# Blanks between the parts of JSON: a small model would write them for ever.
_BLANKS = {"x-guidance": {"whitespace_pattern": r"[ \n]{1,12}"}}


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer asks for.

    Attributes:
        name: The function.
        arguments: A JSON object, as text.

    Raises:
        ChatFormatError: The arguments are something else.
    """

    name: str
    arguments: str

    def __post_init__(self) -> None:
        if not isinstance(self.values(), dict):
            raise ChatFormatError("[message] arguments of a call must be a JSON object")

    def values(self) -> object:
        """Return the arguments as JSON has them; None where it cannot be read."""
        try:
            return parse_strict_json(self.arguments.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None


@dataclass(frozen=True)
class ToolStyle:
    """How the answers of a chat format ask for calls: each a JSON object, between two marks.

    Attributes:
        key: That of the arguments, beside `name`.
        begin: The mark before a call; without marks a call is a whole answer.
        end: The mark after it.
    """

    key: str
    begin: str = ""
    end: str = ""

    @property
    def gap(self) -> str:
        """Return what is between a mark and the object."""
        return "\n" if self.begin else ""

    def written(self, call: ToolCall) -> str:
        """Return a call as an answer has it."""
        arguments = json_text(call.values())
        whole = f'{{"name": "{call.name}", "{self.key}": {arguments}}}'
        return f"{self.begin}{self.gap}{whole}{self.gap}{self.end}"

    def split(self, text: str, is_over: bool = True) -> tuple[str, list[ToolCall]]:
        """Return what an answer says, and the calls that it asks for.

        Args:
            text: The answer as far as it came.
            is_over: Whether no more comes; else what may become a call is held back.
        """
        if not self.begin and not is_over:
            return "" if text.startswith("{") else text, []
        call = rf'{{"name": "([^"\n]*)", "{self.key}": ({{.*?}})}}'
        marked = rf"\n?{self.begin}\n{call}\n{self.end}" if self.begin else rf"\A{call}\Z"
        calls, said, at = list[ToolCall](), "", 0
        for found in re.finditer(marked, text, re.DOTALL):
            with contextlib.suppress(ChatFormatError):  # raised for a call that was cut
                calls.append(ToolCall(found[1], found[2]))
                said, at = said + text[at : found.start()], found.end()
        rest = text[at:]
        if not is_over:
            rest = rest[: min(_before(rest, mark) for mark in (self.begin, f"\n{self.begin}"))]
        return said + rest, calls

    def grammar(self, tools: Sequence[Tool], is_required: bool, many: bool) -> str:
        """Return the grammar, for Lark, of answers that call functions with their arguments.

        Args:
            tools: The functions, at least one.
            is_required: Whether an answer has to be a call.
            many: Whether it may ask for several.
        """
        first, again = json_text(self.begin), json_text("\n" + self.begin)
        more = f"({again} call)*" if self.begin and many else ""
        begin = first if self.begin else ""
        if is_required:
            lines = [f"start: {begin} call {more}"]
        elif self.begin:
            lines = [f"start: TEXT | trigger call {more}", f"trigger[lazy]: TEXT {first}",
                     r"TEXT: /(.|\n)*/"]  # fmt: skip
        else:
            lines = ["start: TEXT | call", r"TEXT: /([^{](.|\n)*)?/"]
        start, end = f'{self.gap}{{"name": "', f"}}{self.gap}{self.end}"
        names = " | ".join(f"f{number}" for number in range(len(tools)))
        lines.append(f"call: {json_text(start)} ({names}) {json_text(end)}")
        for number, tool in enumerate(tools):
            function = tool["function"]
            schema = {"type": "object"} | (function.get("parameters") or {}) | _BLANKS
            named = json_text(f'{function["name"]}", "{self.key}": ')
            lines += [f"f{number}: {named} a{number}", f"a{number}: %json {json_text(schema)}"]
        return "\n".join(lines)


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON as the chat templates of transformers write it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _before(text: str, mark: str) -> int:
    """Return where a mark begins in a text, or may begin at its end."""
    at = text.find(mark)
    return len(text) - overlap(text, mark) if at < 0 else at
