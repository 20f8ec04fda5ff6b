"""From messages to token ids, in the chat format that belongs to a model."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..tokenizer import Tokenizer
from ..untrusted import label_of
from .chat_formats import CHAT_FORMATS, ChatFormat
from .chat_parts import encode_parts, token_id
from .chat_template import format_of_template, format_of_tokens, read_template
from .errors import ChatFormatError
from .message import AnyMessage, as_messages


@dataclass(frozen=True)
class FoundFormat:
    """The chat format of a model and what told it.

    Attributes:
        name: A key of `CHAT_FORMATS`.
        by: `chat template`, `special tokens`, `layout`, or what the user named it with.
    """

    name: str
    by: str


def find_chat_format(directory: Path, tokenizer: Tokenizer) -> FoundFormat:
    """Find the chat format of a model: by its template's text, or else by its special tokens.

    A template that is not known decides too: the special tokens are then not asked, since the
    model was made for another format than theirs. Meta's layout of Llama 2 has neither a template
    nor special tokens for turns; there the layout tells.

    Args:
        directory: The model's files.
        tokenizer: The model's tokenizer.

    Raises:
        ChatFormatError: The format is not known.
        TokenizerError: A file with the template is damaged.
    """
    template = read_template(directory)
    if template is not None:
        name = format_of_template(template)
        if name is None:
            raise _unknown(directory, "has a chat template that is not among the known ones")
        return FoundFormat(name, "chat template")
    name = _format_of_tokens(tokenizer)
    if name is not None:
        return FoundFormat(name, "special tokens")
    if os.path.exists(directory / "params.json") and "<s>" in tokenizer.special_tokens:
        return FoundFormat("llama2", "layout")
    raise _unknown(directory, "has no chat template, and its special tokens belong to no format")


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[AnyMessage],
    add_generation_prompt: bool = True,
    chat_format: str | None = None,
) -> list[int]:
    """Encode a conversation as a model was trained on it.

    Special tokens are placed as ids; text never becomes one.

    Args:
        tokenizer: The model's tokenizer.
        messages: The conversation so far; see `as_messages`.
        add_generation_prompt: Whether to open the assistant's next message; formats without a
            header for it have nothing to open.
        chat_format: A key of `CHAT_FORMATS`; None stands for the format of the special tokens.

    Raises:
        ChatFormatError: There are no messages or what is given is none, the format is not known, it
            cannot express the order of the roles, or the tokenizer lacks a special token of it.
    """
    read = as_messages(messages)
    chosen = _format(tokenizer, chat_format)
    return encode_parts(tokenizer, chosen.build(read, add_generation_prompt))


def end_ids(tokenizer: Tokenizer, chat_format: str | None = None) -> frozenset[int]:
    """Return the ids that end an answer in a chat: the format's and the tokenizer's.

    Args:
        tokenizer: The model's tokenizer.
        chat_format: As in `encode_chat`.

    Raises:
        ChatFormatError: The format is not known.
    """
    names = _format(tokenizer, chat_format).end_names
    found = (token_id(tokenizer, name) for name in names)
    return tokenizer.stop_ids | {token for token in found if token is not None}


def _format(tokenizer: Tokenizer, name: str | None) -> ChatFormat:
    """Look a format up by its name, or by the special tokens where none is given."""
    if name is None:
        name = _format_of_tokens(tokenizer)
        if name is None:
            raise ChatFormatError(
                "[chat] chat_format must be given for a tokenizer whose special tokens belong to "
                f"no format: one of {', '.join(CHAT_FORMATS)}"
            )
    if name not in CHAT_FORMATS:
        raise ChatFormatError(
            f"[chat] chat_format must be one of {', '.join(CHAT_FORMATS)}: got {ascii(name)[:80]}"
        )
    return CHAT_FORMATS[name]


def _format_of_tokens(tokenizer: Tokenizer) -> str | None:
    return format_of_tokens(lambda name: token_id(tokenizer, name) is not None)


def _unknown(directory: Path, why: str) -> ChatFormatError:
    return ChatFormatError(
        f"{label_of(directory)}: chat format: the model {why}; name one with --chat-format "
        f"({', '.join(CHAT_FORMATS)}), or continue raw text with --completion"
    )
