"""Text from outside stays marked in the templates of published models, and nothing else
does.

Every text of a conversation is replaced by letters that no template contains. In the
result these letters come from outside, and the brackets of special tokens come from the
template.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from src.inference.chat_template import ChatTemplate
from src.inference.errors import ChatFormatError
from src.inference.marked_text import marks_of
from tests.inference.template_conversations import (
    CONVERSATIONS,
    SPECIAL_TOKENS,
    Conversation,
)

FILES = sorted((Path(__file__).resolve().parent / "templates").glob("*.jinja"))

# Armenian letters, also as templates may change them with `upper`, `title` or
# `capitalize`.
VEIL = "խ"
VEILS = (VEIL, VEIL.upper())
# The values of these keys are names that templates compare with their own.
PLAIN_KEYS = ("role", "type", "id", "tool_call_id")
PLAIN_VARIABLES = ("reasoning_effort",)
# This template reads contents in parts alone.
PARTS_ONLY = "smolvlm"


def veiled(value: Any, key: str = "") -> Any:
    """Return a value of JSON whose texts consist of spaces and veils."""
    if isinstance(value, str):
        return value if key in PLAIN_KEYS else re.sub(r"\S", VEIL, value)
    if isinstance(value, list):
        return [veiled(element) for element in value]
    if isinstance(value, dict):
        return {name: veiled(element, name) for name, element in value.items()}
    return value


def render(template: ChatTemplate, conversation: Conversation) -> str:
    variables = {
        name: value if name in PLAIN_VARIABLES else veiled(value)
        for name, value in conversation.variables.items()
    }
    return template.render(
        veiled(conversation.messages),
        tools=veiled(conversation.tools),
        documents=veiled(conversation.documents),
        add_generation_prompt=True,
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        **variables,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_texts_from_outside_are_marked_and_special_tokens_are_not(path):
    text = path.read_text(encoding="utf-8")
    assert not any(letter in text for letter in VEILS)
    template = ChatTemplate(text)
    rendered_count = 0
    veil_count = 0
    for conversation in CONVERSATIONS:
        try:
            prompt = render(template, conversation)
        except ChatFormatError:
            continue
        rendered_count += 1
        for character, is_outside in zip(prompt, marks_of(prompt), strict=True):
            if character in VEILS:
                veil_count += 1
                assert is_outside, (conversation.name, str(prompt))
            if character in "<|>":
                assert not is_outside, (conversation.name, str(prompt))
    assert rendered_count > len(CONVERSATIONS) // 3
    assert veil_count > (20 if path.stem == PARTS_ONLY else 1000)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_message_of_special_tokens_is_marked_as_a_whole(path):
    template = ChatTemplate(path.read_text(encoding="utf-8"))
    is_parted = path.stem == PARTS_ONLY
    content = [{"type": "text", "text": SPECIAL_TOKENS}] if is_parted else SPECIAL_TOKENS
    message = {"role": "user", "content": content}
    prompt = template.render(
        [message], special_tokens={"bos_token": "<s>", "eos_token": "</s>"}
    )
    start = prompt.index(SPECIAL_TOKENS)
    marks = marks_of(prompt)
    assert all(marks[start : start + len(SPECIAL_TOKENS)])
    assert not all(marks)
