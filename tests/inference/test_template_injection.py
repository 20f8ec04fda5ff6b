"""No text from outside of a template becomes a special token,
whatever is done with it.
"""

import json
import random

import pytest

from src.inference import ChatTemplate, Message, ToolCall, encode_chat
from tests.inference.byte_tokenizer import ByteTokenizer
from tests.inference.published_templates import PUBLISHED

BEGIN = "<|im_start|>"
END = "<|im_end|>"
TOKENS = (
    "<s>",
    "</s>",
    BEGIN,
    END,
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "<|user|>",
    "<tool_call>",
)

# What a template may do with a text x; the text itself may change, so only tokens are
# compared.
OPERATIONS = (
    "{{ x }}",
    "{{ x | trim }}",
    "{{ x.strip() ~ '' }}",
    "{{ x.split('|') | join('|') }}",
    "{{ '|'.join(x.split('|')) }}",
    "{{ x.replace('a', '') }}",
    "{{ x | replace('a', '') }}",
    "{{ x.replace('END', '>') }}",
    "{{ x[:3] + x[3:] }}",
    "{{ x[::-1][::-1] }}",
    "{{ x | reverse | reverse }}",
    "{{ x | tojson }}",
    "{{ {'a': x} | tojson }}",
    "{{ {x: [x]} }}",
    "{{ [x, x] | string }}",
    "{{ x | upper | lower }}",
    "{{ x.lower() }}",
    "{{ '%s' % x }}",
    "{{ '%s|%s' % (x, x) }}",
    "{{ '{}'.format(x) }}",
    "{{ '{0}{a}'.format(x, a=x) }}",
    "{{ x | format }}",
    "{{ '<' ~ x ~ '>' }}",
    "{{ '<|im_' + x }}",
    "{{ x + 'im_end|>' }}",
    "{% set y %}<{{ x }}>{% endset %}{{ y }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(x) }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ x }}{% endcall %}",
    "{% filter trim %}{{ x }}{% endfilter %}",
    "{% for c in x %}{{ c }}{% endfor %}",
    "{{ x | list | join }}",
    "{{ [x] | map('trim') | join }}",
    "{{ [x, x] | sort | first }}{{ [x] | last }}",
    "{{ {x: x} | dictsort | first | join }}",
    "{{ absent | default(x) }}",
    (
        "{% set ns = namespace(y='') %}{% for c in x %}{% set ns.y = ns.y + c %}{% "
        "endfor %}{{ ns.y }}"
    ),
    "{{ x.partition('|') | join }}",
    "{{ x.rsplit('|', 1) | join('|') }}",
    "{{ x.removeprefix('a').removesuffix('b') }}",
    "{{ x | indent(0) }}",
    "{{ x | center(40) }}",
    "{{ x.center(40, '<') }}",
    "{{ x * 2 }}",
    "{{ x.title() }}{{ x | title }}{{ x | capitalize }}",
    "{{ x.splitlines() | join('') }}",
    "{{ (x,) | join }}",
    "{{ x | safe }}",
)


def hostile_texts() -> list[str]:
    """Return 200 texts that contain tokens, whole, cut, doubled, or in parts."""
    generator = random.Random(0)
    texts = [
        *TOKENS,
        *(f"a{token}b" for token in TOKENS),
        *(f" {token}\n" for token in TOKENS),
    ]
    texts += [token[:at] + token + token[at:] for token in TOKENS for at in (1, 2)]
    texts += [
        "im_end",
        "<|im_endEND",
        "|im_end|",
        "end|>",
        "{{ '<|im_end|>' }}",
        "%s",
        "{}",
    ]
    while len(texts) < 200:
        parts = generator.choices(
            [*TOKENS, "<|", "|>", "im_end", "a", " ", "\n", '"'], k=4
        )
        texts.append("".join(parts))
    return texts


HOSTILE = hostile_texts()


def special_ids(tokenizer: ByteTokenizer, ids: list[int]) -> list[int]:
    return [number for number in ids if number >= 256]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_operation_of_a_template_makes_a_token_of_a_message(operation):
    tokenizer = ByteTokenizer(*TOKENS)
    template = ChatTemplate(
        "{% set x = messages[0].content %}{{ '<|im_start|>' }}"
        + operation
        + "{{ '<|im_end|>' }}"
    )
    expected = [tokenizer.special_tokens[BEGIN], tokenizer.special_tokens[END]]
    for text in HOSTILE:
        if operation == "{{ x | format }}" and "%" in text:
            continue  # a placeholder without a value is an error of the template
        ids = encode_chat(tokenizer, [Message("user", text)], chat_format=template)
        assert special_ids(tokenizer, ids) == expected, text


@pytest.mark.parametrize(
    "place", ["name", "tool", "key", "argument", "result", "document", "value"]
)
def test_no_other_text_from_outside_becomes_a_token(place):
    tokenizer = ByteTokenizer(*TOKENS)
    template = ChatTemplate(
        "{{ '<|im_start|>' }}{% for m in messages %}{{ m.name }}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.name + (c.function.arguments | tojson) "
        "}}"
        "{% endfor %}{% endfor %}{{ tools | tojson(indent=2) }}{{ tools[0].function.name "
        "}}"
        "{% for key, value in tools[0].function.parameters.items() %}{{ key ~ value }}{% "
        "endfor %}"
        "{{ documents[0].title }}{{ given }}{{ '<|im_end|>' }}"
    )
    expected = [tokenizer.special_tokens[BEGIN], tokenizer.special_tokens[END]]
    for text in HOSTILE:
        texts = dict.fromkeys(
            ["name", "tool", "key", "argument", "result", "document", "value"], "a"
        )
        texts[place] = text
        call = ToolCall("f", f'{{"a": {_json(texts["argument"])}}}')
        messages = [
            Message("user", "Hi", name=texts["name"]),
            Message("assistant", "", (call,)),
            Message("tool", texts["result"]),
        ]
        function = {"name": texts["tool"], "parameters": {texts["key"]: texts["key"]}}
        ids = encode_chat(
            tokenizer,
            messages,
            chat_format=template,
            tools=[{"type": "function", "function": function}],
            documents=[{"title": texts["document"]}],
            template_args={"given": texts["value"]},
        )
        assert special_ids(tokenizer, ids) == expected, text


def _json(text: str) -> str:
    """Return a text as JSON."""
    return json.dumps(text)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_makes_the_tokens_of_a_harmless_conversation(name):
    tokenizer = ByteTokenizer(*TOKENS, "<|start_header_id|>", "<|end_header_id|>")
    template = ChatTemplate(PUBLISHED[name])

    def tokens_of(text: str) -> list[int]:
        messages = [
            Message("user", text),
            Message("assistant", "Yes."),
            Message("user", "Bye"),
        ]
        return special_ids(
            tokenizer, encode_chat(tokenizer, messages, chat_format=template)
        )

    expected = tokens_of("Hello")
    for text in HOSTILE:
        assert tokens_of(f"a{text}b") == expected, text


def test_the_tokens_that_a_template_writes_become_ids_in_any_way_of_writing_them():
    tokenizer = ByteTokenizer(*TOKENS)
    message = [Message("user", "Hi")]
    for written in (
        "<|user|>",
        "{{ '<|user|>' }}",
        "{{ '<|' + messages[0].role + '|>' }}",
        "{{ '<|%s|>' % messages[0].role }}",
        "{{ '<|{}|>'.format('user') }}",
        "{{ ['<|', 'user', '|>'] | join }}",
        "{{ '<|USER|>'.lower() }}",
        "{{ '<|user-|>' | replace('-', '') }}",
        "{% set t %}<|user|>{% endset %}{{ t | trim }}",
        "{% macro m(r) %}<|{{ r }}|>{% endmacro %}{{ m('user') }}",
        "{{ '<|user|>x'[:8] }}",
    ):
        ids = encode_chat(tokenizer, message, chat_format=ChatTemplate(written))
        assert ids == [tokenizer.special_tokens["<|user|>"]], written
