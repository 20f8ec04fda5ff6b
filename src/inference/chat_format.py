"""The chat format of Llama 3: messages become token ids, part by part."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..tokenizer import Tokenizer
from .errors import ChatFormatError

ROLES = ("system", "user", "assistant")


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
            shown = ascii(self.role)[:80]
            raise ChatFormatError(f"[message] role must be one of {', '.join(ROLES)}: got {shown}")
        content: object = self.content
        if not isinstance(content, str):
            kind = type(content).__name__
            raise ChatFormatError(f"[message] content must be a text: got {kind}")


def encode_chat(
    tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True
) -> list[int]:
    r"""Encodes a conversation as Llama 3 was trained on it.

    <|begin_of_text|>, then for each message
    <|start_header_id|> role <|end_header_id|> "\n\n" stripped content <|eot_id|>, and at the end
    the header of the assistant. Special tokens are placed as ids; text never becomes one. Without
    a system message there is no system block.

    Args:
        tokenizer: A tokenizer with the special tokens of Llama 3.
        messages: The conversation so far.
        add_generation_prompt: Whether to open the assistant's next message.

    Raises:
        ChatFormatError: There are no messages.
        TokenizerError: The tokenizer lacks a special token of the format.

    Source: meta-llama/llama-models, models/llama3/chat_format.py.
    """
    if not messages:
        raise ChatFormatError("[chat] messages must hold at least one message: got none")
    end_of_turn = tokenizer.special_id("<|eot_id|>")
    ids = [tokenizer.bos_id]
    for message in messages:
        ids += _header(tokenizer, message.role)
        ids += tokenizer.encode(message.content.strip(), bos=False, eos=False)
        ids.append(end_of_turn)
    if add_generation_prompt:
        ids += _header(tokenizer, "assistant")
    return ids


def _header(tokenizer: Tokenizer, role: str) -> list[int]:
    """Returns the ids that open a message."""
    return [
        tokenizer.special_id("<|start_header_id|>"),
        *tokenizer.encode(role, bos=False, eos=False),
        tokenizer.special_id("<|end_header_id|>"),
        *tokenizer.encode("\n\n", bos=False, eos=False),
    ]
