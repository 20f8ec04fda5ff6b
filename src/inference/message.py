"""One turn of a conversation."""

from dataclasses import dataclass

from .errors import ChatFormatError

ROLES = ("system", "user", "assistant")
_SHOWN_CHARS = 80


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Raises:
        ChatFormatError: The role is not one of system, user, assistant, or a part is no text.
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
