"""Calls of functions: what an answer says beside them, and grammars that enforce their schemas."""

import json
import random

import pytest

from src.inference import CHAT_FORMATS, ChatFormatError, Message, ToolCall
from src.inference.chat_formats import ToolStyle
from src.inference.grammars import Grammar
from src.inference.tools import grammar_of_calls, split_calls
from tests.inference.test_grammars import allowed_by, drawn

MARKED, BARE = (CHAT_FORMATS[name].tools or ToolStyle("") for name in ("qwen3", "llama3"))
A, B = ToolCall("a", '{"x": "</tool_call> {"}'), ToolCall("b.c-d", "{}")
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "s": {"$ref": "#/$defs/s"},
    },
    "required": ["n", "s"],
    "additionalProperties": False,
    "$defs": {"s": {"type": "string", "maxLength": 5}},
}
TOOLS = [
    {"type": "function", "function": {"name": "a", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "b.c-d", "parameters": SCHEMA}},
]


def shown(style: ToolStyle, *calls: ToolCall) -> str:
    written = ([getattr(part, "name", part) for part in style.written(call)] for call in calls)
    return "\n".join(map("".join, written))


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (MARKED, "Hi.", ("Hi.", [])),
        (MARKED, shown(MARKED, A), ("", [A])),
        (MARKED, "Hi.\n" + shown(MARKED, A, B, A), ("Hi.", [A, B, A])),
        (MARKED, shown(MARKED, A)[:-1], (shown(MARKED, A)[:-1], [])),
        (MARKED, "<tool_call> 5", ("<tool_call> 5", [])),
        (BARE, "Hi.", ("Hi.", [])),
        (BARE, shown(BARE, A), ("", [A])),
        (BARE, shown(BARE, A)[:-1], (shown(BARE, A)[:-1], [])),
        (BARE, "Hi. " + shown(BARE, A), ("Hi. " + shown(BARE, A), [])),
        (BARE, '{"x": 1}', ('{"x": 1}', [])),
    ],
)
def test_an_answer_is_split_and_no_part_of_a_call_is_shown_before(style, text, expected):
    assert split_calls(style, text) == expected
    said, calls = "", 0
    for end in range(len(text) + 1):
        now, found = split_calls(style, text[:end], is_over=False)
        assert now.startswith(said)
        assert expected[0].startswith(now)
        assert expected[1][: len(found)] == found
        assert len(found) >= calls
        said, calls = now, len(found)


@pytest.mark.parametrize("style", [MARKED, BARE])
def test_arguments_follow_the_schema_of_the_function_that_is_called(style, bundled, grammars):
    jsonschema = pytest.importorskip("jsonschema")
    chance, names, counts = random.Random(1), set(), set()
    for number in range(40):
        many = number % 2 == 0
        text = grammar_of_calls(style, TOOLS, True, many)
        answer = drawn(grammars.mask(Grammar("lark", text)), bundled, chance, 300)
        if answer is None:
            continue
        said, calls = split_calls(style, answer)
        assert not said
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMA)
        names.update(call.name for call in calls)
        counts.add(len(calls))
        assert len(calls) == 1 or (many and style is MARKED)
    assert names == {"a", "b.c-d"}
    assert (max(counts) > 1) == (style is MARKED)


@pytest.mark.parametrize("style", [MARKED, BARE])
@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("", True),
        ("It is 5 {x}.\n", True),
        ("CALL", True),
        ("CALL.", False),
        ('CALL(a, {"n": 100', False),
        ("CALL(z, ", False),
    ],
)
def test_an_answer_may_be_text_or_a_call_that_is_right(style, text, is_allowed, bundled, grammars):
    call = shown(style, ToolCall("a", '{"n": 7, "s": "x"}'))
    begin = call[: call.index('a"')]
    text = (
        text.replace("CALL(", begin).replace(", {", f'", "{style.key}": {{').replace("CALL", call)
    )
    pieces = [bundled.tokenizer.token_bytes(token) for token in range(bundled.args.vocab_size)]
    mask = grammars.mask(Grammar("lark", grammar_of_calls(style, TOOLS, False, True)))
    rest = text.encode()
    while rest:  # the longest token that may come and goes on with the text
        found = [t for t in allowed_by(mask) if pieces[t] and rest.startswith(pieces[t])]
        if not found:
            break
        token = max(found, key=lambda token: len(pieces[token]))
        mask.accept(token)
        rest = rest[len(pieces[token]) :]
    ends = bundled.stop_ids.intersection(allowed_by(mask))
    assert (not rest and bool(ends)) == is_allowed
    mask.close()


@pytest.mark.parametrize("arguments", ["", "[]", "null", "{", '{"a": 1, "a": 2}', "\ud800"])
def test_arguments_that_are_no_object_are_refused(arguments):
    with pytest.raises(ChatFormatError, match="must be a JSON object"):
        Message("assistant", "", (ToolCall("a", arguments),))
