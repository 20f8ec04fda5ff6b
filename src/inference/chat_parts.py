"""Parts of a chat prompt, special tokens and texts, and how they become token ids."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..tokenizer import Tokenizer
from .errors import ChatFormatError


class Edge(Enum):
    """The two special tokens that each tokenizer names itself."""

    BEGIN_OF_TEXT = "begin of text"
    END_OF_TEXT = "end of text"


@dataclass(frozen=True)
class Special:
    """A special token that a format calls by its name.

    Attributes:
        name: Such as `<|eot_id|>`.
        required: Whether a tokenizer without it is refused. Otherwise the name is then text like
            any other, as `[INST]` is in the vocabulary of Llama 2.
    """

    name: str
    required: bool = True


# A plain string is text, which never becomes a special id.
Part = str | Special | Edge


def encode_parts(tokenizer: Tokenizer, parts: Iterable[Part]) -> list[int]:
    """Turns parts into token ids.

    Texts that no special token separates are joined before they are encoded, so the ids are those
    of the whole prompt cut at its special tokens.

    Args:
        tokenizer: Knows the ids.
        parts: The prompt in order.

    Raises:
        ChatFormatError: The tokenizer lacks a special token that is required; the text names it.
    """
    ids: list[int] = []
    waiting: list[str] = []
    for part in parts:
        token = part if isinstance(part, str) else _token(tokenizer, part)
        if isinstance(token, str):
            waiting.append(token)
        else:
            ids += _encode_text(tokenizer, "".join(waiting))
            ids.append(token)
            waiting = []
    return ids + _encode_text(tokenizer, "".join(waiting))


def _token(tokenizer: Tokenizer, part: Special | Edge) -> int | str:
    """Returns the id of a special token, or its name where it may be text."""
    if part is Edge.BEGIN_OF_TEXT:
        return tokenizer.bos_id
    if part is Edge.END_OF_TEXT:
        return tokenizer.eos_id
    assert isinstance(part, Special)
    found = tokenizer.special_tokens.get(part.name)
    if found is None and part.required:
        raise ChatFormatError(
            f"[chat] the tokenizer must have the special token {part.name} of the chat format: "
            "it has none of that name"
        )
    return part.name if found is None else found


def _encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, bos=False, eos=False) if text else []
