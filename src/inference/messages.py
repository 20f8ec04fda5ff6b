"""Messages of a conversation, and the functions that an answer may call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..untrusted import parse_strict_json
from .errors import ChatFormatError

ROLES = ("system", "user", "assistant", "tool")
# Roles that templates compare with and write. Any other role is text from outside.
TEMPLATE_ROLES = frozenset({*ROLES, "developer", "function", "ipython"})
_SHOWN_CHARS = 80
_EXPECTED = "Message, or dicts such as {'role': 'user', 'content': 'hi'}"


# A function in the form of clients: `{"type": "function", "function": {"name": ...}}`.
Tool = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A function call of an answer.

    Attributes:
        name: The function.
        arguments: A JSON object, as text.
        id: The identifier that the result refers to; empty if the client has none.

    Raises:
        ChatFormatError: The arguments are not a JSON object.
    """

    name: str
    arguments: str
    id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.values(), dict):
            raise ChatFormatError("[message] arguments of a call must be a JSON object")

    def values(self) -> object:
        """Return the arguments as a JSON value, or None if they are invalid."""
        try:
            return parse_strict_json(self.arguments.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Raises:
        ChatFormatError: The role is not one of `ROLES`, or the content is not a text.

    Attributes:
        tool_calls: The calls of an assistant; messages of the role tool contain the
            results.
        reasoning: The thoughts of an answer, for chat templates that write them.
        name: The speaker, or the function that returned this result; may be empty.
        tool_call_id: The id of the call that returned this result; may be empty.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    name: str = ""
    tool_call_id: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            shown = ascii(self.role)[:_SHOWN_CHARS]
            raise ChatFormatError(
                f"[message] role must be one of {', '.join(ROLES)}: got {shown}"
            )
        kind = type(self.content)
        if not issubclass(kind, str):
            raise ChatFormatError(
                f"[message] content must be a text: got {kind.__name__}"
            )

    def as_variable(self, arguments_as_text: bool = False) -> dict[str, Any]:
        """Return the message in the form of chat templates.

        Args:
            arguments_as_text: Whether the arguments of calls are JSON text, as in
                OpenAI's API, instead of an object.
        """
        variable: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            variable["tool_calls"] = [
                _call_variable(call, arguments_as_text) for call in self.tool_calls
            ]
        optional = {
            "reasoning_content": self.reasoning,
            "name": self.name,
            "tool_call_id": self.tool_call_id,
        }
        return variable | {key: value for key, value in optional.items() if value}


def _call_variable(call: ToolCall, arguments_as_text: bool) -> dict[str, Any]:
    """Return a call in the form of chat templates."""
    arguments = call.arguments if arguments_as_text else call.values()
    variable: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
    return variable | ({"id": call.id} if call.id else {})


# A message of a caller: a `Message`, or the dict that most chat APIs use.
AnyMessage = Message | Mapping[str, str]


def as_messages(messages: Sequence[AnyMessage]) -> list[Message]:
    """Return the messages of a conversation, each as `Message`.

    Args:
        messages: Messages, or dicts with exactly the keys `role` and `content`.

    Raises:
        ChatFormatError: The argument is not a list of messages, is empty, or contains an
            invalid message.
    """
    value: object = messages
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        kind = type(value).__name__
        raise ChatFormatError(
            f"[chat] messages must be a list of {_EXPECTED}: got {kind}"
        )
    if not messages:
        raise ChatFormatError("[chat] messages must hold at least one message: got none")
    return [_as_message(number, message) for number, message in enumerate(messages)]


def _as_message(number: int, message: object) -> Message:
    if isinstance(message, Message):
        return message
    where = f"[chat] messages[{number}]"
    if not isinstance(message, Mapping):
        raise ChatFormatError(
            f"{where} must be {_EXPECTED}: got {type(message).__name__}"
        )
    if set(message) != {"role", "content"}:
        keys = ", ".join(ascii(key)[:_SHOWN_CHARS] for key in list(message)[:5]) or "none"
        raise ChatFormatError(f"{where} must have the keys role and content: got {keys}")
    return Message(message["role"], message["content"])


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON in the form of the chat templates of transformers."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
