"""Which chat format a model has: by its chat template's text, or else by its special tokens.

A template is a program in Jinja. It is never run: its text is looked through for what a fixed table
names, and a template that the table does not know is unknown.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..tokenizer.bounded_files import kind_of, read_bytes, read_json
from ..tokenizer.errors import mismatch

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"

_QUESTION, _ANSWER = "'[INST] '+message['content']+", "message['content']+eos_token"
_CHATML = "'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'"


@dataclass(frozen=True)
class _Rule:
    """A format, what its template's text has to hold, and what it must not hold."""

    name: str
    holds: tuple[str, ...]
    lacks: tuple[str, ...] = ()


# In this order; the texts are as `_uniform` leaves them.
_TEMPLATE_RULES = (
    _Rule("deepseek-r1", ("'<｜User｜>'+", "'<｜Assistant｜><think>\n'")),
    _Rule(
        "deepseek-r1-2025-01",
        ("'<｜User｜>'+", "'<｜Assistant｜>'", "<｜end▁of▁sentence｜>"),
        ("<think>\n",),
    ),
    _Rule("llama3", ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>")),
    _Rule("smollm2", (_CHATML, "assistant named SmolLM, trained by Hugging Face<|im_end|>")),
    _Rule("chatml-bos", (_CHATML, "bos_token"), ("<|im_start|>system",)),
    _Rule("chatml", (_CHATML,), ("<|im_start|>system",)),
    _Rule("zephyr", ("'<|user|>\n'+message['content']+eos_token", "'<|assistant|>'")),
    _Rule("llama2", ("<<SYS>>\n", "bos_token+'[INST] '+content.strip()+' [/INST]'")),
    _Rule("llama2", ("<<SYS>>\n", "bos_token+'[INST] '+content|trim+' [/INST]'")),
    _Rule("mistral-v1", (f"' {_QUESTION[1:]}' [/INST]'", f"' '+{_ANSWER}")),
    _Rule(
        "mistral-v3",
        (f"{_QUESTION}'[/INST]'", "' '+message['content']|trim+eos_token", "loop.last"),
    ),
    _Rule("mistral-v0.1-2023", (f"{_QUESTION}' [/INST]'", f"{_ANSWER}+' '"), ("<<SYS>>",)),
    _Rule(
        "mistral-v0.2-2023",
        (f"{_QUESTION}' [/INST]'", _ANSWER),
        ("<<SYS>>", f"' '+{_ANSWER}", f"{_ANSWER}+' '"),
    ),
)

# In this order: the vocabulary of R1-Distill-Llama holds the tokens of Llama 3 too.
_TOKEN_RULES = (
    ("deepseek-r1", ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")),
    ("llama3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    ("chatml", ("<|im_start|>", "<|im_end|>")),
    ("mistral-v3", ("[INST]", "[/INST]")),
)


def format_of_template(template: str) -> str | None:
    """Return the name of the format that a template writes, or None for an unknown one.

    Args:
        template: The text of the template.
    """
    text = _uniform(template)
    for rule in _TEMPLATE_RULES:
        if all(t in text for t in rule.holds) and not any(t in text for t in rule.lacks):
            return rule.name
    return None


def format_of_tokens(has: Callable[[str], bool]) -> str | None:
    """Return the name of the format that special tokens belong to, or None.

    Args:
        has: Tells whether a tokenizer has a token of a name.
    """
    for name, needed in _TOKEN_RULES:
        if all(map(has, needed)):
            return name
    return None


def read_template(directory: Path) -> str | None:
    """Read the chat template of a model directory.

    Args:
        directory: Holds `chat_template.jinja`, which is preferred, or `tokenizer_config.json` with
            a `chat_template`: a text, or a list of named texts of which `default` counts.

    Returns:
        The text, or None where there is none.

    Raises:
        TokenizerError: A file cannot be read or is not what it has to be.
    """
    path = directory / TEMPLATE_FILE
    if os.path.exists(path):
        try:
            return read_bytes(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise mismatch(path, "text", "UTF-8", f"other bytes at byte {error.start}") from None
    path = directory / CONFIG_FILE
    if not os.path.exists(path):
        return None
    return _default_template(path, read_json(path).get("chat_template"))


def _default_template(path: Path, value: object) -> str | None:
    """Return the template that a configuration holds."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise mismatch(path, "chat_template", "a text or a list of named texts", kind_of(value))
    named: dict[str, str] = {}
    for entry in value:
        name = entry.get("name") if isinstance(entry, dict) else None
        text = entry.get("template") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(text, str):
            rule = "a name and a template in each entry"
            raise mismatch(path, "chat_template", rule, "something else")
        named[name] = text
    return named.get("default")


def _uniform(template: str) -> str:
    r"""Write what templates write in different ways in one: `\n`, quotes, attributes, spaces."""
    text = template.replace("\\n", "\n").replace('"', "'")
    text = re.sub(r"\bmessage\.(role|content)\b", r"message['\1']", text)
    text = re.sub(r"[ \t]+", " ", text)  # first, so that the next pattern is linear in the length
    return re.sub(r" ?([+|]) ?", r"\1", text)
