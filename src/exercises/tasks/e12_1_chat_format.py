"""Exercise 12.1: the chat format of Llama 3."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...inference import Message, chat_encoding
from ...model import Model
from ...tokenizer import Tokenizer
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt

_CHATS = (
    [("user", "Hello")],
    [("system", "Answer briefly."), ("user", "Why is the sky blue?")],
    [("user", " Hi \n"), ("assistant", "Hello."), ("user", "Who are you?")],
)


def _cases(model: Model) -> list[Case]:
    assert model.tokenizer is not None
    template = chat_encoding.template_of(model.tokenizer, None)
    cases = []
    for chat in _CHATS:
        messages = [Message(role, text) for role, text in chat]
        conversation = chat_encoding.Conversation(messages)
        text = chat_encoding.render_chat(model.tokenizer, conversation, template)
        cases.append(Case("prompt", (list(chat),), text, f"{len(chat)} messages"))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = chat_encoding.render_chat

    def render_chat(tokenizer: Tokenizer, conversation: Any, template: Any) -> str:
        if not conversation.add_generation_prompt:  # the engine looks for the end token
            return engine(tokenizer, conversation, template)
        messages: Sequence[Any] = conversation.messages
        pairs = [(message.role, message.content) for message in messages]
        text = call((pairs,), engine(tokenizer, conversation, template))
        return str(text)

    return replaced(chat_encoding, "render_chat", render_chat)


EXERCISE = WriteIt(
    number="12.1",
    title="Write a chat as a prompt",
    minutes=15,
    difficulty="medium",
    function="prompt",
    task="""\
Write the chat format of Llama 3. The text begins with `<|begin_of_text|>`. Each message is a
header, its text without surrounding white space, and an end:

`<|start_header_id|>ROLE<|end_header_id|>`, two newlines, TEXT, `<|eot_id|>`

After the last message, the header of the assistant's answer follows, with its two newlines.

- `messages`: a list of pairs (role, text).

Return the text. It must be equal to the engine's.
""",
    stub='''\
def prompt(messages):
    """Return the prompt for a list of pairs (role, text)."""
    raise NotImplementedError
''',
    solution='''\
def header(role):
    return f"<|start_header_id|>{role}<|end_header_id|>\\n\\n"


def prompt(messages):
    """Return the prompt for a list of pairs (role, text)."""
    text = "<|begin_of_text|>"
    for role, content in messages:
        text += header(role) + content.strip() + "<|eot_id|>"
    return text + header("assistant")
''',
    mistakes=(
        Mistake(
            "The header of the answer is missing. Without it, the model would continue with a "
            "header, not with an answer.",
            ((' + header("assistant")', ""),),
        ),
        Mistake(
            "There are two newlines after each header, not one.",
            (("\\n\\n", "\\n"),),
        ),
        Mistake(
            "The texts keep their surrounding white space: use strip().",
            (("content.strip()", "content"),),
        ),
        Mistake(
            "The text begins with <|begin_of_text|>.",
            (('"<|begin_of_text|>"', '""'),),
        ),
        Mistake(
            "Each message ends with <|eot_id|>.",
            ((' + "<|eot_id|>"', ""),),
        ),
        Mistake(
            "The answer must stay open: no <|eot_id|> after its header.",
            (('header("assistant")', 'header("assistant") + "<|eot_id|>"'),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
