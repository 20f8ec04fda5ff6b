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


# A function as clients describe it: `{"type": "function", "function": {"name": ...}}`.
Tool = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer asks for.

    Attributes:
        name: The function.
        arguments: A JSON object, as text.
        id: The name that a result refers to; empty if the client has none.

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
        """Return the arguments as JSON has them; None where it cannot be read."""
        try:
            return parse_strict_json(self.arguments.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Raises:
        ChatFormatError: The role is not one of `ROLES`, or the content not a text.

    Attributes:
        tool_calls: What an assistant asked for; messages of the role tool hold the
            results.
        reasoning: The thoughts of an answer, for chat templates that write them.
        name: Who speaks, or the function whose result this is; empty for none.
        tool_call_id: The id of the call whose result this is; empty for none.
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
        """Return the message as chat templates read it.

        Args:
            arguments_as_text: Whether the arguments of calls are JSON as a text, as in
                OpenAI's API, and not an object.
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
    """Return a call as chat templates read it."""
    arguments = call.arguments if arguments_as_text else call.values()
    variable: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
    return variable | ({"id": call.id} if call.id else {})


# A message as code passes it: ours, or the dict that APIs for chats share.
AnyMessage = Message | Mapping[str, str]


def as_messages(messages: Sequence[AnyMessage]) -> list[Message]:
    """Return the messages of a conversation, each as `Message`.

    Args:
        messages: Messages, or dicts with the keys `role` and `content` and no others.

    Raises:
        ChatFormatError: It is not a list of messages, it is empty, or a message cannot be
            read.
    """
    given: object = messages
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        got = type(given).__name__
        raise ChatFormatError(f"[chat] messages must be a list of {_EXPECTED}: got {got}")
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
        found = (
            ", ".join(ascii(key)[:_SHOWN_CHARS] for key in list(message)[:5]) or "none"
        )
        raise ChatFormatError(f"{where} must have the keys role and content: got {found}")
    return Message(message["role"], message["content"])


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON as the chat templates of transformers write it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
