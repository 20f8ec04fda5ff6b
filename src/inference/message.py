"""One turn of a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .errors import ChatFormatError

ROLES = ("system", "user", "assistant")
_SHOWN_CHARS = 80
_KEYS = ("role", "content")
_EXPECTED = "Message, or dicts such as {'role': 'user', 'content': 'hi'}"


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Raises:
        ChatFormatError: The role is not one of system, user, assistant, or a part is not text.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            shown = ascii(self.role)[:_SHOWN_CHARS]
            raise ChatFormatError(f"[message] role must be one of {', '.join(ROLES)}: got {shown}")
        content: object = self.content
        if not isinstance(content, str):
            kind = type(content).__name__
            raise ChatFormatError(f"[message] content must be a text: got {kind}")


# A message as code passes it: ours, or the dict that APIs for chats share.
AnyMessage = Message | Mapping[str, str]


def as_messages(messages: Sequence[AnyMessage]) -> list[Message]:
    """Return the messages of a conversation, each as `Message`.

    Args:
        messages: Messages, or dicts with the keys `role` and `content` and no others.

    Raises:
        ChatFormatError: It is not a list of messages, or holds none, or one cannot be read.
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
        raise ChatFormatError(f"{where} must be {_EXPECTED}: got {type(message).__name__}")
    if set(message) != set(_KEYS):
        found = ", ".join(ascii(key)[:_SHOWN_CHARS] for key in list(message)[:5]) or "none"
        raise ChatFormatError(f"{where} must have the keys {' and '.join(_KEYS)}: got {found}")
    return Message(message["role"], message["content"])
