"""Parts of a chat prompt, special tokens and texts, and how they become token ids."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

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
    """Turn parts into token ids.

    Texts that no special token separates are joined before they are encoded, so the ids are those
    of the whole prompt cut at its special tokens. A tokenizer file may list tokens of a format as
    plain words, as that of R1-Distill-Llama does with `<｜User｜>`; a text that holds one is cut
    inside of it, so that no message can make one.

    Args:
        tokenizer: Knows the ids.
        parts: The prompt in order.

    Raises:
        ChatFormatError: The tokenizer lacks a special token that is required; the text names it.
    """
    parts = list(parts)
    named = {part.name for part in parts if isinstance(part, Special)}
    tokens = {name: token_id(tokenizer, name) for name in named}
    words = [n for n in named if tokens[n] is not None and n not in tokenizer.special_tokens]
    found_in_text = re.compile("|".join(map(re.escape, sorted(words)))) if words else None
    ids: list[int] = []
    text: list[str] = []
    for part in (*parts, None):
        token = part if isinstance(part, str) else _token(tokenizer, part, tokens)
        if isinstance(token, str):
            text.append(token)
            continue
        for piece in _cut_inside("".join(text), found_in_text):
            ids += tokenizer.encode(piece, bos=False, eos=False, first=not ids)
        text = []
        ids += token
    return ids


def token_id(tokenizer: Tokenizer, name: str) -> int | None:
    """Return the id of a token that a format calls by its name, or None where there is none.

    Args:
        tokenizer: Has it among its special tokens, or as a word that is one token.
        name: Such as `<|im_start|>`.
    """
    known = tokenizer.special_tokens.get(name)
    if known is not None:
        return known
    ids = tokenizer.encode(name, bos=False, eos=False, first=False)
    if len(ids) == 1 and tokenizer.token_bytes(ids[0]) == name.encode():
        return ids[0]
    return None


def _token(
    tokenizer: Tokenizer, part: Special | Edge | None, tokens: Mapping[str, int | None]
) -> list[int] | str:
    """Return the id of a special token, or its name where it may be text; none for no part."""
    if part is None:
        return []
    if isinstance(part, Edge):
        return [tokenizer.bos_id if part is Edge.BEGIN_OF_TEXT else tokenizer.eos_id]
    found = tokens[part.name]
    if found is None and part.required:
        raise ChatFormatError(
            f"[chat] the tokenizer must have the special token {part.name} of the chat format: "
            "it has none of that name"
        )
    return part.name if found is None else [found]


def _cut_inside(text: str, words: re.Pattern[str] | None) -> list[str]:
    """Cut a text after the first character of each word; without words it stays in one piece."""
    found = words.finditer(text) if words is not None else ()
    bounds = [0, *(match.start() + 1 for match in found), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]
