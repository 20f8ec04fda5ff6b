"""Conversation messages, and the functions that an answer may call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..untrusted import parse_strict_json
from .errors import ChatFormatError

ROLES = ("system", "user", "assistant", "tool")
# Roles that templates know and write themselves. Any other role is untrusted text.
TEMPLATE_ROLES = frozenset({*ROLES, "developer", "function", "ipython"})
_SHOWN_CHARS = 80
_EXPECTED = "Message, or dicts such as {'role': 'user', 'content': 'hi'}"


# A function definition in API format: `{"type": "function", "function": {"name": ...}}`.
Tool = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A function call in an answer.

    Attributes:
        name: The function name.
        arguments: The arguments, as a JSON string that contains an object.
        id: The call ID that the result refers to, or an empty string.

    Raises:
        ChatFormatError: If the arguments are not a JSON object.
    """

    name: str
    arguments: str
    id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.values(), dict):
            raise ChatFormatError("[message] arguments of a call must be a JSON object")

    def values(self) -> object:
        """Return the parsed arguments, or None if they are invalid JSON."""
        try:
            return parse_strict_json(self.arguments.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None


@dataclass(frozen=True)
class Message:
    """A message in a conversation.

    Raises:
        ChatFormatError: If the role is not one of `ROLES`, or the content is not a
            string.

    Attributes:
        role: The author's role, one of `ROLES`.
        content: The text of the message.
        tool_calls: The assistant's function calls. Messages with the role "tool" contain
            the results.
        reasoning: The assistant's thoughts, for chat templates that include them.
        name: The name of the speaker, or of the function that returned this result. May
            be empty.
        tool_call_id: The ID of the call that returned this result. May be empty.
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
                f"[message] content must be a string: got {kind.__name__}"
            )

    def as_variable(self, arguments_as_text: bool = False) -> dict[str, Any]:
        """Return the message as a dict in the format that chat templates expect.

        Args:
            arguments_as_text: Whether to pass call arguments as a JSON string, as in
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
    """Return a call as a dict in the format that chat templates expect."""
    arguments = call.arguments if arguments_as_text else call.values()
    variable: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
    return variable | ({"id": call.id} if call.id else {})


# A message passed by a caller: a `Message`, or a dict in the format of most chat APIs.
AnyMessage = Message | Mapping[str, str]


def as_messages(messages: Sequence[AnyMessage]) -> list[Message]:
    """Convert the messages of a conversation to `Message` objects.

    Args:
        messages: `Message` objects, or dicts with exactly the keys `role` and `content`.

    Raises:
        ChatFormatError: If the argument is not a list of messages, is empty, or contains
            an invalid message.
    """
    value: object = messages
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        kind = type(value).__name__
        raise ChatFormatError(
            f"[chat] messages must be a list of {_EXPECTED}: got {kind}"
        )
    if not messages:
        raise ChatFormatError(
            "[chat] messages must contain at least one message: got none"
        )
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
    """Return a value as JSON, formatted like `tojson` in transformers' chat templates."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
