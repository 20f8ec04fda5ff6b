"""Which chat format a model has, and a conversation as token ids in it.

A chat template is a program in Jinja. It is never run: its text is looked through for what a fixed
table names, and a template that the table does not know is unknown.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..tokenizer import Tokenizer
from ..tokenizer.config_files import MAX_FILE_BYTES, read_json
from ..tokenizer.errors import TokenizerError, mismatch
from ..untrusted import described, label_of, read_whole
from .chat_formats import CHAT_FORMATS, AnyMessage, ChatFormat, Edge, Special, Tool, as_messages
from .errors import ChatFormatError

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"

_QUESTION, _ANSWER = "'[INST] '+message['content']+", "message['content']+eos_token"
_USER, _R1_USER = "'<|user|>\n'+message['content']+", "'<｜User｜>'+"
_CHATML = "'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'"
_GRANITE = "'<|start_of_role|>{}<|end_of_role|>'+message['content']+'<|end_of_text|>\n'"

# A format and texts that its template contains, as `_uniform` writes it, or with a `!` does not
# contain; in order.
_TEMPLATE_RULES: tuple[tuple[str, ...], ...] = (
    ("deepseek-r1", _R1_USER, "'<｜Assistant｜><think>\n'"),
    ("deepseek-r1-2025-01", _R1_USER, "'<｜Assistant｜>'", "<｜end▁of▁sentence｜>", "!<think>\n"),
    ("llama3", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    ("smollm2", _CHATML, "assistant named SmolLM, trained by Hugging Face<|im_end|>"),
    ("qwen3", _CHATML, "enable_thinking is false", "'<think>\n\n</think>\n\n'", "last_query_index"),
    ("qwen2.5", _CHATML, "Alibaba Cloud. You are a helpful assistant.<|im_end|>", "!<think>"),
    ("qwen2", _CHATML, "'<|im_start|>system\nYou are a helpful assistant.<|im_end|>"),
    (
        "smollm3",
        "strftime_now('%d %B %Y')",
        "Reasoning Mode: '+reasoning_mode+'",
        "SmolLM, trained by Hugging Face. Your role as",
        "/system_override",
        "if xml_tools ",
        "'\n\n' -}}\n {{- '<|im_end|>\n' -}}\n {%- endif",  # within the part about tools
    ),
    ("granite", "<|start_of_role|>assistant", "\nToday's Date: '+strftime_now('%B %d, %Y')"),
    ("granite-3.0", *map(_GRANITE.format, ("system", "user", "assistant")), "!Today's Date"),
    ("chatml-bos", _CHATML, "bos_token", "!<|im_start|>system"),
    ("chatml", _CHATML, "!<|im_start|>system"),
    ("olmo2", "bos_token", f"{_USER}'\n'", "eos_token+'\n'", "not loop.last"),
    ("zephyr", f"{_USER}eos_token", "'<|assistant|>'"),
    ("llama2", "<<SYS>>\n", "bos_token+'[INST] '+content.strip()+' [/INST]'"),
    ("llama2", "<<SYS>>\n", "bos_token+'[INST] '+content|trim+' [/INST]'"),
    ("mistral-v1", f"' {_QUESTION[1:]}' [/INST]'", f"' '+{_ANSWER}"),
    ("mistral-v3", f"{_QUESTION}'[/INST]'", "' '+message['content']|trim+eos_token", "loop.last"),
    ("mistral-v0.1-2023", f"{_QUESTION}' [/INST]'", f"{_ANSWER}+' '", "!<<SYS>>"),
    ("mistral-v0.2-2023", f"{_QUESTION}' [/INST]'", _ANSWER, "!<<SYS>>", f"!' '+{_ANSWER}"),
)

# A template of the format of Llama 3, whose files in Meta's layout have none.
_LLAMA_3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{% endif %}"
)

# In this order: the vocabulary of R1-Distill-Llama holds the tokens of Llama 3 too.
_KNOWN_BY_TOKENS = ("deepseek-r1", "llama3", "chatml", "mistral-v3")


@dataclass(frozen=True)
class FoundFormat:
    """The chat format of a model, and how it was found.

    Attributes:
        name: A key of `CHAT_FORMATS`.
        by: `chat template`, `special tokens`, `layout`, or what the user named it with.
    """

    name: str
    by: str


def find_chat_format(
    directory: Path, tokenizer: Tokenizer, template: str | None = None
) -> FoundFormat:
    """Find the chat format of a model: by its template's text, or else by its special tokens.

    An unknown template is refused, whatever the special tokens are: the model was made for another
    format than theirs. Meta's layout of Llama 2 has neither a template nor special tokens for
    turns; there the layout decides.

    Args:
        directory: The model's files, or its GGUF file.
        tokenizer: The model's tokenizer.
        template: The chat template where it is known; None to look for it in the directory.

    Raises:
        ChatFormatError: The format is not known.
        TokenizerError: A file with the template is damaged.
    """
    if template is None:
        template = read_template(directory)
    if template is not None:
        name, by = format_of_template(template), "chat template"
        why = "has a chat template that is not among the known ones"
    else:
        name, by = format_of_tokens(tokenizer), "special tokens"
        why = "has no chat template, and its special tokens belong to no format"
        is_meta = os.path.exists(directory / "params.json")
        if name is None and is_meta and "<s>" in tokenizer.special_tokens:
            name, by = "llama2", "layout"
    if name is None:
        raise ChatFormatError(
            f"{label_of(directory)}: chat format: the model {why}; name one with --chat-format "
            f"({', '.join(CHAT_FORMATS)}), or continue raw text with --completion"
        )
    return FoundFormat(name, by)


def format_of_template(template: str) -> str | None:
    """Return the name of the format that a template's text writes, or None for an unknown one."""
    text = _uniform(template)
    for name, *texts in _TEMPLATE_RULES:
        if all((rule.removeprefix("!") in text) != rule.startswith("!") for rule in texts):
            return name
    return None


def format_of_tokens(tokenizer: Tokenizer) -> str | None:
    """Return the name of the format that the tokenizer's special tokens belong to, or None."""
    for name in _KNOWN_BY_TOKENS:
        needed = [part.name for part in CHAT_FORMATS[name].specials if isinstance(part, Special)]
        if all(token_id(tokenizer, token) is not None for token in needed):
            return name
    return None


def read_template(directory: Path) -> str | None:
    """Return the chat template of a model directory, or None; raise TokenizerError for a bad file.

    It is in `chat_template.jinja`, which is preferred, or in `tokenizer_config.json`: a text, or a
    list of named texts of which `default` counts.
    """
    path = directory / TEMPLATE_FILE
    if os.path.exists(path):
        try:
            return read_whole(path, MAX_FILE_BYTES, TokenizerError).decode("utf-8")
        except UnicodeDecodeError as error:
            raise mismatch(path, "text", "UTF-8", f"other bytes at byte {error.start}") from None
    path = directory / CONFIG_FILE
    value = read_json(path).get("chat_template") if os.path.exists(path) else None
    rule = "a text or a list of texts, each with its name"
    if isinstance(value, list):
        try:
            value = {entry["name"]: entry["template"] for entry in value}.get("default")
        except (TypeError, KeyError):
            raise mismatch(path, "chat_template", rule, "another list") from None
    if value is None or isinstance(value, str):
        return value
    raise mismatch(path, "chat_template", rule, described(value))


def template_to_write(directory: Path, tokenizer: Tokenizer | None) -> str | None:
    """Return the chat template for a GGUF file: the model's own, or that of its special tokens."""
    template = read_template(directory)
    if template is None and tokenizer is not None and format_of_tokens(tokenizer) == "llama3":
        return _LLAMA_3_TEMPLATE
    return template


def _uniform(template: str) -> str:
    r"""Write what templates write in different ways in one: `\n`, quotes, attributes, spaces."""
    text = template.replace("\\n", "\n").replace('"', "'")
    text = re.sub(r"\bmessage\.(role|content)\b", r"message['\1']", text)
    text = re.sub(r"[ \t]+", " ", text)  # first, so that the next pattern is linear in the length
    return re.sub(r" ?([+|]) ?", r"\1", text)


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[AnyMessage],
    add_generation_prompt: bool = True,
    chat_format: str | None = None,
    think: bool = True,
    tools: Sequence[Tool] = (),
) -> list[int]:
    """Encode a conversation as a model was trained on it.

    Special tokens are placed as ids; text never becomes one.

    Args:
        tokenizer: The model's tokenizer.
        messages: The conversation so far; see `as_messages`.
        add_generation_prompt: Whether to open the assistant's next message; formats without a
            header for it have nothing to open.
        chat_format: A key of `CHAT_FORMATS`; None stands for the format of the special tokens.
        think: Whether the answer that is opened may begin with thoughts.
        tools: The functions that it may ask for, as clients of OpenAI's API describe them.

    Raises:
        ChatFormatError: The messages cannot be read or there are none, the format is not known, it
            has no tools, cannot express the order of the roles or leave out thoughts, or the
            tokenizer lacks a special token of it.
    """
    found = _format(tokenizer, chat_format)
    read = as_messages(messages)
    if found.tools is None and (tools or any(m.role == "tool" or m.tool_calls for m in read)):
        raise ChatFormatError(f"[chat] tools must be left out: the format {found.name} has none")
    build = found.build if think else found.build_thoughtless or found.build
    parts = build(read, add_generation_prompt, **({"tools": tools} if tools else {}))
    if not think and add_generation_prompt:
        if found.no_thought is None:
            rule = f"think must be on in the format {found.name}, which cannot turn it off"
            raise ChatFormatError(f"[chat] {rule}")
        parts.append(found.no_thought)
    return encode_parts(tokenizer, parts)


def end_ids(tokenizer: Tokenizer, chat_format: str | None = None) -> frozenset[int]:
    """Return the ids that end an answer in a chat: the format's and the tokenizer's.

    Args:
        tokenizer: The model's tokenizer.
        chat_format: As in `encode_chat`.

    Raises:
        ChatFormatError: The format is not known.
    """
    last = _format(tokenizer, chat_format).specials[-1]
    end = token_id(tokenizer, last.name) if isinstance(last, Special) else None
    return tokenizer.stop_ids if end is None else tokenizer.stop_ids | {end}


def _format(tokenizer: Tokenizer, name: str | None) -> ChatFormat:
    """Look a format up by its name, or by the special tokens where none is given."""
    known = ", ".join(CHAT_FORMATS)
    if name is None and (name := format_of_tokens(tokenizer)) is None:
        raise ChatFormatError(
            "[chat] chat_format must be given for a tokenizer whose special tokens belong to "
            f"no format: one of {known}"
        )
    if name not in CHAT_FORMATS:
        raise ChatFormatError(f"[chat] chat_format must be one of {known}: got {ascii(name)[:80]}")
    return CHAT_FORMATS[name]


def encode_parts(tokenizer: Tokenizer, parts: Sequence[str | Special | Edge]) -> list[int]:
    """Turn the parts of a prompt into ids; raise ChatFormatError where a special token is missing.

    Texts that no special token separates are joined before they are encoded, so the ids are those
    of the whole prompt cut at its special tokens. A tokenizer file may list tokens of a format as
    plain words, as that of R1-Distill-Llama does with `<｜User｜>`; a text that holds one is cut
    inside of it, so that no message can make one.
    """
    found: dict[object, Any] = {one: _id_or_text(tokenizer, one) for one in dict.fromkeys(parts)}
    named = {part.name for part in parts if isinstance(part, Special) and found[part] != part.name}
    words = sorted(named - tokenizer.special_tokens.keys())
    inside = "|".join(f"(?<={re.escape(word[0])})(?={re.escape(word[1:])})" for word in words)
    ids: list[int] = []
    ids_and_texts = map(found.__getitem__, parts)
    for is_text, pieces in groupby(ids_and_texts, lambda piece: isinstance(piece, str)):
        if not is_text:
            ids += pieces
            continue
        whole = "".join(pieces)
        for text in filter(None, re.split(inside, whole) if inside else [whole]):
            ids += tokenizer.encode(text, bos=False, eos=False, first=not ids)
    return ids


def _id_or_text(tokenizer: Tokenizer, part: str | Special | Edge) -> int | str:
    """Return the id of a special token, or the text that is in its place."""
    if isinstance(part, str):
        return part
    if isinstance(part, Edge):
        return tokenizer.bos_id if part is Edge.BEGIN else tokenizer.eos_id
    found = token_id(tokenizer, part.name)
    if found is None and part.required:
        raise ChatFormatError(
            f"[chat] the tokenizer must have the special token {part.name} of the chat format: "
            "it has none of that name"
        )
    return part.name if found is None else found


def token_id(tokenizer: Tokenizer, name: str) -> int | None:
    """Return the id of a special token, or of a word that is one token, by its name, or None."""
    known = tokenizer.special_tokens.get(name)
    if known is not None:
        return known
    ids = tokenizer.encode(name, bos=False, eos=False, first=False)
    is_one = len(ids) == 1 and tokenizer.token_bytes(ids[0]) == name.encode()
    return ids[0] if is_one else None
