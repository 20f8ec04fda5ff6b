"""Find a model's chat template, and encode conversations as token ids.

A prompt is encoded in two steps. First the template renders it, with a mark on each
character that does not come from the template itself. Then the prompt is split at the
special tokens that the template wrote, and the text between them is encoded. So no
message, name, tool or document can become a special token, whatever the template does.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..chat_formats import CHAT_FORMATS
from ..model.sources import Source
from ..tokenizer import Tokenizer, TokenizerError
from ..untrusted import label_of
from .chat_template import TOKEN_LIKE as _WORD
from .chat_template import ChatTemplate, check_argument_names, named_template
from .errors import ChatFormatError
from .marked_text import marks_of
from .messages import AnyMessage, Message, Tool, as_messages

# The order matters, because R1-Distill-Llama's vocabulary also contains Llama 3's tokens.
_FORMATS_BY_TOKENS = ("deepseek-r1", "llama3", "chatml", "mistral-v3")
# Thought markers. Earlier answers may contain them as the model wrote them. But if the
# prompt itself opens a thought, the template has removed all earlier thoughts, so that no
# message may contain a marker.
_THOUGHT_WORDS = frozenset({"<think>", "</think>"})
_OUTSIDE_MARKS = re.compile(b"\1+")
_OUTSIDE = "\0"  # not part of any special token
_END_PROBE = "answer"
_LONGEST_OPENING = 32  # maximum number of tokens in the marker that opens a thought
_ADVICE = "name one with --chat-format ({}), or continue raw text with --completion"


def find_chat_template(source: Source, tokenizer: Tokenizer) -> ChatTemplate:
    """Find a model's chat template.

    This is the model's own template or, if it has none, the named format that matches its
    special tokens. Meta's Llama 2 checkpoints have neither a template nor special tokens
    for chats, so their file layout determines the format.

    Raises:
        ChatFormatError: If the model has no template, and its special tokens do not match
            a known format.
        TokenizerError: If a file that contains the template is damaged.
    """
    templates = source.chat_templates
    if "default" in templates:
        return ChatTemplate(templates["default"], tool_text=templates.get("tool_use"))
    name = format_of_tokens(tokenizer)
    if name is not None:
        return named_template(name, "special tokens")
    if source.chat_format is not None and "<s>" in tokenizer.special_tokens:
        return named_template(source.chat_format, "layout")
    advice = _ADVICE.format(", ".join(CHAT_FORMATS))
    raise ChatFormatError(
        f"{label_of(source.path)}: chat format: the model has no chat template, and its "
        f"special tokens belong to no format; {advice}"
    )


def format_of_tokens(tokenizer: Tokenizer) -> str | None:
    """Return the name of the format that matches the special tokens, or None."""
    for name in _FORMATS_BY_TOKENS:
        tokens = [
            token for token in CHAT_FORMATS[name].tokens if token not in ("bos", "eos")
        ]
        if all(token_id(tokenizer, token) is not None for token in tokens):
            return name
    return None


def template_of(
    tokenizer: Tokenizer, chat_format: str | ChatTemplate | None
) -> ChatTemplate:
    """Return the template for a `chat_format` argument.

    This is the argument itself, the template with this name, or for None the template
    that matches the special tokens.

    Raises:
        ChatFormatError: If the name is unknown, or if the special tokens do not match a
            known format.
    """
    if isinstance(chat_format, ChatTemplate):
        return chat_format
    if chat_format is not None:
        return named_template(chat_format)
    name = format_of_tokens(tokenizer)
    if name is None:
        names = ", ".join(CHAT_FORMATS)
        raise ChatFormatError(
            "[chat] chat_format must be given for a tokenizer whose special tokens "
            f"belong to no format: one of {names}"
        )
    return named_template(name, "special tokens")


@dataclass(frozen=True)
class Conversation:
    """The input of a template. See `encode_chat` for the attributes."""

    messages: Sequence[AnyMessage]
    add_generation_prompt: bool = True
    think: bool = True
    tools: Sequence[Tool] = ()
    documents: Sequence[Mapping[str, Any]] = ()
    template_args: Mapping[str, Any] | None = None


def render_chat(
    tokenizer: Tokenizer, conversation: Conversation, template: ChatTemplate
) -> str:
    """Render the prompt that `encode_chat` encodes, with the same exceptions."""
    messages = as_messages(conversation.messages)
    _check_expressible(template, messages, conversation.tools, conversation.documents)
    _check_tokens(template, tokenizer)
    variables = dict(conversation.template_args or {})
    check_argument_names(variables)
    if not conversation.think:
        if conversation.add_generation_prompt and not template.can_leave_out_thoughts:
            rule = f"think must be on: the format {template.name} cannot turn it off"
            raise ChatFormatError(f"[chat] {rule}")
        variables = {"enable_thinking": False, "thinking": False} | variables
    return template.render_messages(
        messages,
        tools=[*conversation.tools] or None,
        documents=[*conversation.documents] or None,
        add_generation_prompt=conversation.add_generation_prompt,
        special_tokens=_special_variables(tokenizer),
        **variables,
    )


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[AnyMessage],
    add_generation_prompt: bool = True,
    chat_format: str | ChatTemplate | None = None,
    think: bool = True,
    tools: Sequence[Tool] = (),
    documents: Sequence[Mapping[str, Any]] = (),
    template_args: Mapping[str, Any] | None = None,
) -> list[int]:
    """Encode a conversation in the format that a model was trained on.

    Only special tokens written by the template itself are encoded as special tokens.

    Args:
        tokenizer: The model's tokenizer.
        messages: The conversation so far. See `as_messages`.
        add_generation_prompt: Whether to append the header of the assistant's next
            message. It has no effect for formats without such a header.
        chat_format: A template, or a key of `CHAT_FORMATS`. By default, the format that
            matches the special tokens is used.
        think: Whether the answer may begin with thoughts.
        tools: The functions that the answer may call, as in OpenAI's API.
        documents: The documents that the answer may quote, in the form that the template
            expects.
        template_args: Additional template variables by name.

    Raises:
        ChatFormatError: If the messages are invalid or empty; if the format is unknown,
            or does not support the tools, the documents, the order of the roles, or
            answers without thoughts; if the template fails; or if the tokenizer does not
            have a special token that the format requires.
    """
    template = template_of(tokenizer, chat_format)
    conversation = Conversation(
        messages=messages,
        add_generation_prompt=add_generation_prompt,
        think=think,
        tools=tools,
        documents=documents,
        template_args=template_args,
    )
    prompt = render_chat(tokenizer, conversation, template)
    return encode_prompt(tokenizer, prompt, template)


def opens_thought(
    tokenizer: Tokenizer, template: ChatTemplate, prompt_ids: Sequence[int]
) -> bool:
    """Return whether a prompt ends with an open thought that the answer continues."""
    end = tokenizer.decode(prompt_ids[-_LONGEST_OPENING:])
    return end.rstrip().endswith(template.thought_form.begin)


def _check_expressible(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    documents: Sequence[Mapping[str, Any]],
) -> None:
    """Raise ChatFormatError if the template would ignore tools or documents."""
    has_calls = any(message.role == "tool" or message.tool_calls for message in messages)
    if (tools or has_calls) and not template.has_tools:
        rule = f"tools must be left out: the format {template.name} has none"
        raise ChatFormatError(f"[chat] {rule}")
    if documents and not template.reads("documents"):
        rule = f"documents must be left out: the format {template.name} has none"
        raise ChatFormatError(f"[chat] {rule}")


def _check_tokens(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Raise ChatFormatError if the tokenizer lacks a special token that is required."""
    variables = _special_variables(tokenizer)
    for name in template.tokens:
        if name in ("bos", "eos"):
            if f"{name}_token" not in variables:
                end = "begins" if name == "bos" else "ends"
                raise ChatFormatError(
                    f"[chat] the tokenizer must have a token that {end} a text, for the "
                    f"format {template.name}: it has none"
                )
        elif token_id(tokenizer, name) is None:
            raise ChatFormatError(
                f"[chat] the tokenizer must have the special token {name} of the chat "
                "format: it has none of that name"
            )


@lru_cache(maxsize=8)
def _special_variables(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the template variables that contain special tokens, such as `bos_token`."""
    names: dict[str, str] = {}
    with contextlib.suppress(TokenizerError):
        names["bos_token"] = tokenizer.token_bytes(tokenizer.bos_id).decode()
    with contextlib.suppress(TokenizerError):
        names["eos_token"] = tokenizer.token_bytes(tokenizer.eos_id).decode()
    return names


def end_ids(
    tokenizer: Tokenizer, chat_format: str | ChatTemplate | None = None
) -> frozenset[int]:
    """Return the token ids that end an answer in a chat.

    These are the tokenizer's end tokens, the first special token that the template writes
    after an answer, and the token that ends an answer with a call, if it has its own.

    Args:
        tokenizer: The model's tokenizer.
        chat_format: See `encode_chat`.

    Raises:
        ChatFormatError: If the format is unknown.
    """
    template = template_of(tokenizer, chat_format)
    ids = tokenizer.stop_ids
    if template.call_form is not None and template.call_form.stop:
        stop = token_id(tokenizer, template.call_form.stop)
        ids = ids if stop is None else ids | {stop}
    messages = [Message("user", "question"), Message("assistant", _END_PROBE)]
    try:
        conversation = Conversation(messages, add_generation_prompt=False)
        prompt = render_chat(tokenizer, conversation, template)
    except ChatFormatError:
        return ids
    at = prompt.rfind(_END_PROBE)
    if at < 0:
        return ids
    after = prompt[at + len(_END_PROBE) :]
    for text, number in _cut_at_special_tokens(tokenizer, after, template):
        if number is not None:
            return ids | {number}
        if text.strip():
            break
    return ids


def encode_prompt(tokenizer: Tokenizer, prompt: str, template: ChatTemplate) -> list[int]:
    """Encode a prompt that was rendered by a template.

    The text between two special tokens is always encoded in one piece.
    """
    ids: list[int] = []
    for text, number in _cut_at_special_tokens(tokenizer, prompt, template):
        if number is None:
            ids += tokenizer.encode(text, bos=False, eos=False, first=not ids)
        else:
            ids.append(number)
    return ids


def _cut_at_special_tokens(
    tokenizer: Tokenizer, prompt: str, template: ChatTemplate
) -> list[tuple[str, int | None]]:
    """Split a prompt into (text, id) pairs, where the id of plain text is None.

    A special token is recognized only if all of its characters come from the template.
    """
    plain = str.__getitem__(prompt, slice(None))
    shadow = _hide_outside(plain, marks_of(prompt))
    written = frozenset(_WORD.findall(shadow))
    candidates = written | template.words
    if not shadow.rstrip().endswith(template.thought_form.begin):
        candidates -= _THOUGHT_WORDS
    specials = _specials(tokenizer, candidates)
    pieces: list[tuple[str, int | None]] = []
    done = 0
    strips_left = False  # whether the previous token absorbs the following white space
    for start, name in specials.find(shadow):
        text = plain[done:start].lstrip() if strips_left else plain[done:start]
        takes_left, strips_left = tokenizer.spaces_taken.get(name, (False, False))
        pieces += _plain_pieces(text.rstrip() if takes_left else text, specials.cuts)
        pieces.append((name, specials.ids[name]))
        done = start + len(name)
    text = plain[done:].lstrip() if strips_left else plain[done:]
    return pieces + _plain_pieces(text, specials.cuts)


def _hide_outside(text: str, marks: bytes) -> str:
    """Replace each character that does not come from the template with `_OUTSIDE`."""
    parts: list[str] = []
    done = 0
    for outside in _OUTSIDE_MARKS.finditer(marks):
        parts.append(text[done : outside.start()])
        parts.append(_OUTSIDE * (outside.end() - outside.start()))
        done = outside.end()
    return "".join([*parts, text[done:]])


def _plain_pieces(
    text: str, words: "re.Pattern[str] | None"
) -> list[tuple[str, int | None]]:
    """Return the pieces of plain text, split inside any word that is a special token."""
    parts = [text] if words is None else words.split(text)
    return [(part, None) for part in parts if part]


class _Specials:
    """The special tokens that a prompt may contain.

    A tokenizer file may list a template's tokens as plain words, as R1-Distill-Llama does
    with `<｜User｜>`. Such a word is also a special token if the template writes it. If
    it appears in other text, the text is split inside the word, so that it is not encoded
    as this token.

    Args:
        tokenizer: The tokenizer that defines the special tokens.
        candidates: Words in the template or the prompt that may also be special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, candidates: frozenset[str]) -> None:
        self.ids = {
            name: number for name, number in tokenizer.special_tokens.items() if name
        }
        words: list[str] = []
        for word in sorted(candidates):
            number = None if word in self.ids else token_id(tokenizer, word)
            if number is not None:
                self.ids[word] = number
                words.append(word)
        # Compiling one pattern of all names takes too long. Llama 3 has 256 of them.
        firsts = "".join({re.escape(name[0]) for name in self.ids})
        self._places = re.compile(f"[{firsts}]") if firsts else None
        self._lengths = sorted({len(name) for name in self.ids}, reverse=True)
        cuts = [f"(?<={re.escape(word[0])})(?={re.escape(word[1:])})" for word in words]
        self.cuts = re.compile("|".join(cuts)) if cuts else None

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the position and name of each special token, preferring long names."""
        end = 0
        for place in self._places.finditer(text) if self._places else ():
            start = place.start()
            if start < end:
                continue
            for length in self._lengths:
                name = text[start : start + length]
                if name in self.ids:
                    yield start, name
                    end = start + length
                    break


@lru_cache(maxsize=8)
def _specials(tokenizer: Tokenizer, candidates: frozenset[str]) -> _Specials:
    """Return the cached special tokens for a tokenizer and candidate words."""
    return _Specials(tokenizer, candidates)


def token_id(tokenizer: Tokenizer, name: str) -> int | None:
    """Return the id of a special token or of a word that is a single token, or None."""
    token = tokenizer.special_tokens.get(name)
    if token is not None:
        return token
    ids = tokenizer.encode(name, bos=False, eos=False, first=False)
    is_one = len(ids) == 1 and tokenizer.token_bytes(ids[0]) == name.encode()
    return ids[0] if is_one else None


def check_template(
    tokenizer: Tokenizer, template: ChatTemplate, think: bool = True
) -> None:
    """Check that a template works by encoding an empty question.

    Args:
        tokenizer: The model's tokenizer.
        template: The template.
        think: Whether the answer may begin with thoughts.

    Raises:
        ChatFormatError: If the template fails, or if the tokenizer does not have one of
            its special tokens.
    """
    encode_chat(tokenizer, [Message("user", "")], chat_format=template, think=think)


def template_to_write(source: Source) -> str | None:
    """Return the chat template to write to a GGUF file, or None.

    This is the model's own template, or Llama 3's template if the special tokens match.
    """
    template = source.chat_templates.get("default")
    if template is not None:
        return template
    tokenizer = source.find_tokenizer()
    if tokenizer is not None and format_of_tokens(tokenizer) == "llama3":
        llama3 = named_template("llama3")
        return llama3.tool_text or llama3.text
    return None
