"""Grammars for answers with function calls, generated from the syntax of the calls."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .answer_forms import ARGUMENTS, IDENTITY, NAME, CallForm
from .grammars import BLANKS
from .messages import Tool, json_text

_WRITTEN_IDENTITY = "/[a-zA-Z0-9]{9}/"


def grammar_of_calls(
    form: CallForm,
    tools: Sequence[Tool],
    is_required: bool,
    many: bool,
    special_ids: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return a Lark grammar for answers that contain function calls.

    Args:
        form: How the model writes calls.
        tools: The available functions, at least one.
        is_required: Whether the answer must be a call. Otherwise it may also be text.
        many: Whether the answer may contain several calls, if the form allows it.
        special_ids: The tokenizer's special token ids by name. If a marker is a special
            token, the grammar requires this token instead of the same text.
    """
    more = ""
    if many and form.between is not None:
        more = f"({_lark(form.between, special_ids)} call)*"
    calls = (
        f"{_lark(form.open, special_ids)} call {more} {_lark(form.close, special_ids)}"
    )
    if is_required:
        lines = [f"start: {_lark(form.begin, special_ids)} calls"]
    elif form.begin:
        spelled = " | ".join(map(json_text, form.begins))
        tokens = [
            f"| TEXT <[{special_ids[b]}]> calls" for b in form.begins if b in special_ids
        ]
        lines = [
            f"start: TEXT | trigger calls {' '.join(tokens)}",
            f"trigger[lazy]: TEXT ({spelled})",
            r"TEXT: /(.|\n)*/",
        ]
    else:
        marked = [f"| {_lark(begin, special_ids)} calls" for begin in form.begins]
        others = [f" & ~/{re.escape(begin)}(.|\\n)*/" for begin in form.begins]
        lines = [
            f"start: TEXT | calls {' '.join(marked)}",
            rf"TEXT: /([^{{](.|\n)*)?/{''.join(others)}",
        ]
    before, _, rest = form.call.partition(NAME)
    middle, _, after = rest.partition(ARGUMENTS)
    names = " | ".join(f"f{number}" for number in range(len(tools)))
    lines += [
        f"calls: {calls}",
        f"call: {_lark(before, special_ids)} ({names}) {_lark(after, special_ids)}",
    ]
    is_json = before.lstrip().startswith("{")
    for number, tool in enumerate(tools):
        function = tool["function"]
        name = json_text(function["name"])
        schema = (
            {"type": "object"}
            | (function.get("parameters") or {})
            | {"x-guidance": BLANKS}
        )
        if is_json:
            name = json_text(name[1:-1])
        lines += [
            f"f{number}: {name} {_lark(middle, special_ids)} a{number}",
            f"a{number}: %json {json_text(schema)}",
        ]
    return "\n".join(lines)


def _lark(part: str, special_ids: Mapping[str, int]) -> str:
    """Convert a part of a call form to Lark terms: tokens, patterns and literals."""
    tokens = sorted((name for name in special_ids if name in part), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, [*tokens, IDENTITY]))})", part)
    terms = list[str]()
    for text in parts:
        if text in special_ids:
            terms.append(f"<[{special_ids[text]}]>")
        elif text == IDENTITY:
            terms.append(_WRITTEN_IDENTITY)
        elif text:
            terms.append(json_text(text))
    return " ".join(terms)
