"""The limits of the sandbox leave room for what templates and long conversations need."""

from pathlib import Path
from typing import Any

import pytest

from src.inference.chat_template import ChatTemplate
from src.inference.errors import ChatFormatError
from tests.inference.template_conversations import (
    TOOLS,
    assistant,
    system,
    tool_call,
    tool_result,
    user,
)

FILES = sorted((Path(__file__).resolve().parent / "templates").glob("*.jinja"))
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# This template reads contents in parts alone.
PARTS_ONLY = "smolvlm"
TIME = 1_790_000_000


def write(text: str, **variables: Any) -> str:
    return str(ChatTemplate(text).render([user("Hi")], **variables))


@pytest.mark.parametrize(
    "text",
    [
        "{% macro write(value) %}{{ value }}{% endmacro %}{{ write(time) }}",
        "{% macro write(value=1) %}{{ value }}{% endmacro %}{{ write(value=time) }}",
        "{{ missing | default(1790000000) }}",
        "{{ {}.get('at', time) }}",
        "{{ '{}'.format(time) }}",
        "{{ '%d' | format(time) }}",
        "{{ [time] | select('gt', 1700000000) | first }}",
        "{% set ns = namespace(at=time) %}{{ ns.at }}",
    ],
)
def test_a_large_number_is_an_argument_where_it_is_no_width(text):
    assert write(text, time=TIME) == str(TIME)


@pytest.mark.parametrize(
    "expression",
    [
        "'x'.center(time)",
        "'x'.zfill(time)",
        "'x'.ljust(width=time)",
        "'x' | center(time)",
        "'x' | indent(time)",
        "'x' | truncate(time)",
        "1.5 | round(time)",
        "[1] | tojson(indent=time)",
        "[1] | batch(time, 0) | list",
        "[1] | slice(time, 0) | list",
    ],
)
def test_a_large_number_is_refused_as_a_width_or_a_count(expression):
    with pytest.raises(ChatFormatError, match="a width or a count must be at most 10000"):
        write("{{ " + expression + " }}", time=TIME)


def test_a_list_contains_macros_and_namespaces_which_it_does_not_write():
    macros = "{% macro f(x) %}<{{ x }}>{% endmacro %}{% set all = [f, {'g': f}] %}"
    assert write(macros + "{{ all[0](1) }}{{ all[1].g(2) }}") == "<1><2>"
    namespaces = "{% set ns = namespace(x=1) %}{% set all = [ns] %}{% set ns.all = all %}"
    assert (
        write(namespaces + "{{ all[0].x }}{{ all | length }}{{ ns.all[0].x }}") == "111"
    )
    for written in (
        "ns",
        "all",
        "all | string",
        "{'a': all}",
        "'%s' % all",
        "all | join",
    ):
        with pytest.raises(ChatFormatError, match="a namespace cannot be written"):
            write(namespaces + "{{ " + written + " }}")
    with pytest.raises(ChatFormatError, match="not JSON serializable"):
        write(namespaces + "{{ all | tojson }}")


def test_a_variable_that_is_set_inside_of_generation_ends_with_it():
    text = (
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    )
    assert write(text) == "21"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_have_each_name_that_templates_read(name):
    template = ChatTemplate(
        "{% for m in messages %}{{ m.reasoning_content }}, {{ m.thinking }}.{% endfor %}"
    )
    message = assistant("", **{name: "Hm"})
    assert template.render([message]) == "Hm, Hm."
    assert message == assistant("", **{name: "Hm"})


def test_a_name_for_thoughts_keeps_its_own_text():
    template = ChatTemplate(
        "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    )
    assert template.render([assistant("", reasoning_content="A", thinking="B")]) == "A B"
    assert template.render([assistant("", reasoning_content=None, thinking="B")]) == "B B"
    assert template.render([assistant("", thinking=None)]) == " None"


def long_conversation(turns: int, has_calls: bool) -> list[dict[str, Any]]:
    """Return a conversation, with a call and its result in each second turn if asked
    for.
    """
    messages = [system("Be brief.")]
    for turn in range(turns):
        messages.append(user(f"Question {turn}: " + "how is the weather now? " * 10))
        if has_calls and turn % 2:
            call_id = f"weather{turn % 100:02}"
            arguments = {"city": "Zürich", "at": TIME, "days": [1, 2]}
            call = tool_call("get_weather", arguments, call_id)
            messages.append(assistant("", reasoning_content="I look.", tool_calls=[call]))
            messages.append(tool_result("get_weather", '{"sky": "clear"}', call_id))
        messages.append(assistant(f"Answer {turn}: " + "it is clear. " * 20))
    messages.append(user("Thanks!"))
    return messages


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_conversation_of_500_messages_is_within_the_limits(path):
    template = ChatTemplate(path.read_text(encoding="utf-8"))
    messages = long_conversation(250, has_calls=False)
    prompt = template.render(messages, special_tokens=SPECIAL_TOKENS)
    assert "Thanks!" in prompt or path.stem == PARTS_ONLY

    messages = long_conversation(167, has_calls=True)
    assert len(messages) > 500
    error = ""
    try:
        template.render(messages, tools=TOOLS, special_tokens=SPECIAL_TOKENS)
    except ChatFormatError as raised:
        error = str(raised)
    # A template may refuse the roles or the contents of calls, but not their number.
    assert "too many" not in error
    assert "too large" not in error


def test_a_loop_over_the_characters_of_a_long_message_is_within_the_limits():
    """Templates of LLaVA's kind loop over the parts of a content,
    also if it is one text.
    """
    template = ChatTemplate(
        "{% for message in messages %}"
        "{% if message.content is string %}USER: {{ message.content }}{% endif %}"
        "{% if message.content is iterable %}"
        "{% for part in message.content %}"
        "{% if part.type == 'image_url' and part.url is string %}{{ part.url }}{% endif "
        "%}"
        "{% if part.type == 'image_url' and part.url is mapping %}{{ part.url.url }}{% "
        "endif %}"
        "{% endfor %}"
        "{% for part in message.content %}"
        "{% if part.type == 'text' %}{{ part.text }}{% endif %}"
        "{% endfor %}"
        "{% endif %}"
        "{% endfor %}"
    )
    text = "word " * 5000
    assert template.render([user(text)]) == "USER: " + text
