"""Chat templates: what they are given, which one is taken, and what is known of their
answers.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from src.inference import (
    ChatFormatError,
    ChatTemplate,
    Message,
    ToolCall,
    encode_chat,
    find_chat_template,
    named_template,
)
from src.inference.chat_encoding import opens_thought
from src.inference.marked_text import marks_of
from tests.inference.byte_tokenizer import LLAMA2, LLAMA3, R1, ByteTokenizer, spelled

REPOSITORY = Path(__file__).resolve().parents[2]
QUESTION = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@dataclass
class Source:
    """The part of a source that is asked for a template."""

    chat_templates: dict[str, str] = field(default_factory=dict)
    chat_format: str | None = None
    path: Path = Path("model")


def run_without_jinja(*arguments: str) -> str:
    program = (
        "import sys\nfrom src.main import main\n"
        f"sys.argv = ['llama-bolts', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('jinja2' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def test_jinja_is_loaded_for_a_chat_and_not_for_a_completion():
    assert run_without_jinja("-p", "Hi", "-n", "1", "--completion") == "False"
    assert run_without_jinja("-p", "Hi", "-n", "1") == "True"


def test_a_template_reads_messages_tools_documents_and_arguments():
    template = ChatTemplate(
        "{{ messages[0].content }} {{ tools[0].function.name }} {{ documents[0].title }} "
        "{{ size }}"
        " {{ bos_token }} {{ add_generation_prompt }} {{ absent is defined }}"
    )
    rendered = template.with_arguments({"size": 3}).render(
        QUESTION,
        tools=[TOOL],
        documents=[{"title": "T"}],
        add_generation_prompt=True,
        special_tokens={"bos_token": "<s>"},
    )
    assert rendered == "Hi f T 3 <s> True False"
    outside = "".join("^" if mark else "." for mark in marks_of(rendered))
    assert outside == "^^.^.^.................."[: len(rendered)]


def test_the_template_for_tools_is_taken_if_there_are_tools():
    template = ChatTemplate("plain", tool_text="with tools")
    assert template.render(QUESTION) == "plain"
    assert template.render(QUESTION, tools=[]) == "plain"
    assert template.render(QUESTION, tools=[TOOL]) == "with tools"


def test_arguments_of_calls_are_objects_or_texts_for_a_template_that_fails_with_objects():
    call = Message("assistant", "", (ToolCall("f", '{"a": "b"}', id="c1"),))
    objects = (
        "{% set c = messages[0].tool_calls[0] %}{{ c.id }} {{ c.function.arguments.a }}"
    )
    texts = "{{ '' + messages[0].tool_calls[0].function.arguments }}"
    assert ChatTemplate(objects).render_messages([call]) == "c1 b"
    assert ChatTemplate(texts).render_messages([call]) == '{"a": "b"}'
    with pytest.raises(ChatFormatError, match="can only concatenate str"):
        ChatTemplate("{{ '' + [] }}").render_messages([call])


def test_thoughts_names_and_ids_are_given_only_where_a_message_has_them():
    template = ChatTemplate(
        "{% for m in messages %}{{ m.keys() | list | join(',') }};{% endfor %}"
    )
    messages = [
        Message("user", "x", name="Ann"),
        Message("assistant", "y", reasoning="z"),
        Message("tool", "r", tool_call_id="c"),
    ]
    assert template.render_messages(messages) == (
        "role,content,name;thinking,role,content,reasoning_content;role,content,tool_call_id;"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ raise_exception('no\nway ' + messages[0].content) }}", "no way Hi"),
        ("{% for %}", r"Expected an expression, got 'end of statement block' \(line 1\)"),
        ("{{ messages.absent.more }}", "'list object' has no attribute 'absent'"),
        ("{{ 1 // 0 }}", "integer division or modulo by zero"),
        ("{% include 'x' %}", "no loader for this environment specified"),
        ("x" * 300_000, "it must have at most 131072 characters"),
    ],
)
def test_a_template_that_fails_is_one_line_that_says_what_helps(text, reason):
    advice = "; name a format with --chat-format, or continue raw text with --completion$"
    with pytest.raises(
        ChatFormatError, match=rf"^\[chat\] chat template: {reason}{advice}"
    ):
        ChatTemplate(text).render(QUESTION)


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "documents", "add_generation_prompt", "special_tokens", "self"],
)
def test_an_argument_for_a_template_replaces_no_part_of_the_conversation(name):
    messages = [Message("user", "Hi")]
    tokenizer = ByteTokenizer(*LLAMA3)
    with pytest.raises(ChatFormatError, match=f"argument must not be called {name}$"):
        encode_chat(tokenizer, messages, template_args={name: "x"})
    with pytest.raises(ChatFormatError, match=f"argument must not be called {name}$"):
        named_template("llama3").with_arguments({name: "x"})


@pytest.mark.parametrize("depth", [100, 1000, 100_000])
def test_values_of_many_levels_are_refused(depth):
    value: Any = []
    for _ in range(depth):
        value = [value]
    with pytest.raises(ChatFormatError, match=r"too deep|maximum recursion depth"):
        ChatTemplate("{{ messages[0].content }}").render(QUESTION, x=value)


def test_whether_an_answer_begins_inside_of_a_thought_is_seen_in_its_prompt():
    tokenizer = ByteTokenizer(*R1)
    for template, expected in (
        (named_template("deepseek-r1"), True),
        (named_template("deepseek-r1-2025-01"), False),
        (ChatTemplate("{{ messages[0].content }}: <think>\n"), True),
        (ChatTemplate("{{ messages[0].content }} </think>"), False),
    ):
        ids = encode_chat(tokenizer, [Message("user", "Hi")], chat_format=template)
        assert opens_thought(tokenizer, template, ids) == expected


def test_thoughts_can_be_left_out_if_there_are_none_or_a_variable_leaves_them_out():
    can = {
        name: named_template(name).can_leave_out_thoughts
        for name in ("llama3", "qwen3", "smollm3", "deepseek-r1", "deepseek-r1-2025-01")
    }
    assert can == {
        "llama3": True,
        "qwen3": True,
        "smollm3": True,
        "deepseek-r1": False,
        "deepseek-r1-2025-01": False,
    }


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"tools": [TOOL]}, "tools must be left out: the format chatml has none"),
        (
            {"documents": [{"title": "x"}]},
            "documents must be left out: the format chatml has none",
        ),
    ],
)
def test_what_a_template_does_not_read_is_refused(more: dict[str, Any], rule: str):
    tokenizer = ByteTokenizer(*LLAMA3, "<|im_start|>", "<|im_end|>")
    with pytest.raises(ChatFormatError, match=rule):
        encode_chat(tokenizer, [Message("user", "Hi")], chat_format="chatml", **more)


def test_the_template_of_the_model_goes_before_its_special_tokens_and_these_before_the_layout():
    own = Source({"default": "D", "tool_use": "T"})
    found = find_chat_template(own, ByteTokenizer(*LLAMA3))
    assert (found.text, found.tool_text, found.by) == ("D", "T", "chat template")
    found = find_chat_template(Source(), ByteTokenizer(*LLAMA3))
    assert (found.name, found.by) == ("llama3", "special tokens")
    found = find_chat_template(Source(chat_format="llama2"), ByteTokenizer(*LLAMA2))
    assert (found.name, found.by) == ("llama2", "layout")
    with pytest.raises(
        ChatFormatError, match="has no chat template, and its special tokens"
    ):
        find_chat_template(Source(), ByteTokenizer(*LLAMA2))


def test_a_role_that_templates_write_may_be_part_of_a_token_and_any_other_may_not():
    tokenizer = ByteTokenizer("<s>", "</s>", "<|user|>", "<|end|>")
    template = ChatTemplate(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
    )
    ids = encode_chat(tokenizer, [Message("user", "Hi")], chat_format=template)
    assert spelled(tokenizer, ids) == "{<|user|>}Hi"
    sly = template.render([{"role": "end", "content": ""}])
    assert sly == "<|end|>"
    assert b"\1" in marks_of(sly)
